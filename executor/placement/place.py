"""Which weight lives where: llama.cpp's `-ot`, `-ncmoe` and `-ngl` as a set of host tensors, `-ts` as layers a
device.

Only matrices move: norms, biases, routers and the token embedding stay resident, as every ubatch reads them and
their bytes do not matter (the embedding is read a row a token).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from executor.errors import HprofError
from executor.model import TensorInfo, layer_of
from executor.placement.overrides import DEFAULT_OVERRIDE, overridden, parse_overrides


@dataclass(frozen=True, slots=True)
class Placement:
    """The names of the tensors in host memory; everything else is resident."""

    host: frozenset[str]
    spelled: str  # the options that gave it, for the manifest

    def is_host(self, name: str) -> bool:
        """Whether the tensor of that name lives in host memory."""
        return name in self.host

    def host_layers(self) -> list[int]:
        """Layers with at least one host tensor."""
        return sorted({layer for name in self.host if (layer := layer_of(name)) is not None})


EVERYTHING_RESIDENT: Final = Placement(frozenset(), "all resident")


def is_movable(tensor: TensorInfo) -> bool:
    """Whether a tensor obeys placement: a matrix or expert stack of a block, and not its router."""
    matrix = len(tensor.shape) >= 2 and tensor.name.endswith(".weight")
    return matrix and tensor.layer is not None and "ffn_gate_inp" not in tensor.name and "conv1d" not in tensor.name


def place(
    tensors: Mapping[str, TensorInfo],
    *,
    overrides: str | None = None,
    n_cpu_moe: int = 0,
    n_gpu_layers: int | None = None,
) -> Placement:
    """Decide which tensors live in host memory.

    `overrides` is one `-ot` configuration; None with neither of the others given means `DEFAULT_OVERRIDE`.
    `n_cpu_moe` keeps the experts of the first N layers in host memory; `n_gpu_layers` keeps only the last N
    layers resident; both leave alone what an override matches, as in llama.cpp. Raises HprofError when a pattern
    matches no movable tensor.
    """
    if overrides is None and not n_cpu_moe and n_gpu_layers is None:
        overrides = DEFAULT_OVERRIDE
    movable = [t for t in tensors.values() if is_movable(t)]
    decided = overridden(tensors, [t.name for t in movable], parse_overrides(overrides or ""))
    open_ = [t for t in movable if t.name not in decided]
    host = {name for name, is_host in decided.items() if is_host}
    host |= {t.name for t in open_ if "_exps" in t.name and (t.layer or 0) < n_cpu_moe}
    if n_gpu_layers is not None and n_gpu_layers >= 0:
        first_resident = 1 + max((t.layer or 0 for t in movable), default=-1) - n_gpu_layers
        host |= {t.name for t in open_ if (t.layer or 0) < first_resident}
    return Placement(frozenset(host), _spell(overrides, n_cpu_moe, n_gpu_layers))


def _spell(overrides: str | None, n_cpu_moe: int, n_gpu_layers: int | None) -> str:
    spelled = []
    if overrides:
        spelled.append(f"-ot {overrides}")
    if n_cpu_moe:
        spelled.append(f"-ncmoe {n_cpu_moe}")
    if n_gpu_layers is not None:
        spelled.append(f"-ngl {n_gpu_layers}")
    return " ".join(spelled) or "all resident"


def layers_to_devices(n_layers: int, shares: Sequence[float]) -> list[int]:
    """Each layer's device, when device i takes `shares[i]` of the layers (llama.cpp's `-sm layer -ts 3/1`).

    Raises HprofError when a device would get no layer.
    """
    edges = [sum(shares[: i + 1]) / sum(shares) for i in range(len(shares))]
    devices = [
        next(i for i, edge in enumerate(edges) if (layer + 0.5) / n_layers <= edge + 1e-9) for layer in range(n_layers)
    ]
    if set(devices) != set(range(len(shares))):
        raise HprofError(
            f"-ts {'/'.join(f'{share:g}' for share in shares)} leaves a device without any of the {n_layers} layers: "
            "give more even shares or fewer devices"
        )
    return devices


def devices_of(tensor: TensorInfo, device_of: Sequence[int], *, tied_embeddings: bool) -> set[int]:
    """The devices that read a tensor, where `device_of` gives each layer's.

    The embedding is the first's, what follows the last layer the last's; a tied embedding is both.
    """
    if tensor.layer is not None:
        return {device_of[tensor.layer]}
    if tensor.name != "token_embd.weight":
        return {device_of[-1]}
    return {device_of[0], device_of[-1]} if tied_embeddings else {device_of[0]}
