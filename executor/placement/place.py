"""Which weight lives where: llama.cpp's `-ot`, `-ncmoe` and `-ngl` as a set of host tensors, `-ts` as layers a
device.

Only matrices move: norms, biases, routers and the token embedding stay resident, as every ubatch reads them and
their bytes do not matter (the embedding is read a row a token).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.errors import HprofError
from executor.model import TensorInfo, layer_of
from executor.placement.overrides import default_override, overridden, parse_overrides


@dataclass(frozen=True, slots=True)
class Placement:
    """The names of the tensors in host memory; everything else is resident."""

    host: frozenset[str]
    spelled: str  # the options that gave it, for the manifest
    notes: tuple[str, ...] = ()  # sentences on overrides that do other than they seem to
    first_split_layer: int = 0  # layers before it are beyond -ngl; with several devices the first computes them

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
    device_of: Sequence[int] = (),
) -> Placement:
    """Decide which tensors live in host memory.

    `overrides` is one `-ot` configuration; None with neither of the others given means `default_override`.
    `n_cpu_moe` keeps the experts of the first N layers in host memory; `n_gpu_layers` is as `first_resident_layer`
    counts it; both leave alone what an override matches, as in llama.cpp. `device_of`, as `layers_to_devices` gives
    it, is what `=CUDA1` is held against; without it there is one device. Raises HprofError when a pattern matches no
    movable tensor, or names a device that the tensor's layer is not on.
    """
    if overrides is None and not n_cpu_moe and n_gpu_layers is None:
        overrides = default_override(tensors)
    movable = [t for t in tensors.values() if is_movable(t)]
    decided = overridden(tensors, [t.name for t in movable], parse_overrides(overrides or ""), device_of)
    open_ = [t for t in movable if t.name not in decided.is_host]
    host = {name for name, is_host in decided.is_host.items() if is_host}
    host |= {t.name for t in open_ if "_exps" in t.name and (t.layer or 0) < n_cpu_moe}
    first = first_resident_layer(1 + max((t.layer or 0 for t in movable), default=-1), n_gpu_layers)
    host |= {t.name for t in open_ if (t.layer or 0) < first}
    return Placement(frozenset(host), _spell(overrides, n_cpu_moe, n_gpu_layers), decided.notes, first)


def first_resident_layer(n_layers: int, n_gpu_layers: int | None) -> int:
    """The first layer that `-ngl` keeps: the output is the first to be kept and counts as one layer.

    llama.cpp's rule (load_tensors, src/llama-model.cpp: i_gpu_start = max(n_layer + 1 - n_gpu_layers, 0)); so
    n_layers + 1, and any negative number, keeps all, as None does.
    """
    return 0 if n_gpu_layers is None or n_gpu_layers < 0 else max(n_layers + 1 - n_gpu_layers, 0)


def _spell(overrides: str | None, n_cpu_moe: int, n_gpu_layers: int | None) -> str:
    spelled = []
    if overrides:
        spelled.append(f"-ot {overrides}")
    if n_cpu_moe:
        spelled.append(f"-ncmoe {n_cpu_moe}")
    if n_gpu_layers is not None:
        spelled.append(f"-ngl {n_gpu_layers}" if n_gpu_layers >= 0 else "-ngl all")
    return " ".join(spelled) or "all resident"


def layers_to_devices(n_layers: int, shares: Sequence[float], first_split_layer: int = 0) -> list[int]:
    """The device of each layer and, last, of the output, where device i has `shares[i]` (llama.cpp's `-ts 3/1`).

    As llama.cpp's load_tensors (src/llama-model.cpp) does it, in its single precision: of the n layers that `-ngl`
    offloads, from `first_split_layer` on and with the output as one more, the i-th is the first device's whose share,
    all before it added, lies above i / n. So the last device may hold the output alone. Layers before them lie in host
    memory, and llama.cpp's scheduler offers their products to the first device first. Raises HprofError when a device
    gets nothing.
    """
    ends = np.cumsum(np.array(shares, dtype=np.float32), dtype=np.float32)
    n_split = max(n_layers + 1 - first_split_layer, 0)
    places = np.arange(n_split, dtype=np.float32) / np.float32(n_split)
    split: list[int] = np.searchsorted(ends / ends[-1], places, side="right").tolist()
    devices = [0] * (n_layers + 1 - n_split) + split
    if set(devices) != set(range(len(shares))):
        raise _device_without_layers(n_layers, shares, n_split)
    return devices


def _device_without_layers(n_layers: int, shares: Sequence[float], n_split: int) -> HprofError:
    ratio = "/".join(f"{share:g}" for share in shares)[:80]
    asked = f"--n-devices {len(shares)}" if len(set(shares)) == 1 else f"-ts {ratio}"
    if n_split <= n_layers:
        return HprofError(
            f"-ngl {n_split} leaves {asked} {n_split} of {n_layers + 1} layers to split, the output among them, and "
            "a device none: give a larger -ngl, or name the host weights with -ot, which moves no layer."
        )
    return HprofError(
        f"{asked} leaves a device without any of the {n_layers} layers and without the output: "
        "give more even shares or fewer devices."
    )


def devices_of(tensor: TensorInfo, device_of: Sequence[int], *, tied_embeddings: bool) -> set[int]:
    """The devices that read a tensor, where `device_of` gives each layer's and, last, the output's.

    The embedding is the first's, norm and matrix of the output the last's; a tied embedding is both's.
    """
    if tensor.layer is not None:
        return {device_of[tensor.layer]}
    if tensor.name != "token_embd.weight":
        return {device_of[-1]}
    return {device_of[0], device_of[-1]} if tied_embeddings else {device_of[0]}
