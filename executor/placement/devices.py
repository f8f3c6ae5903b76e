"""What lives on which of several devices: layers as llama.cpp's `-ts` splits them, the model's ends with them."""

from __future__ import annotations

from collections.abc import Sequence

from executor.errors import HprofError
from executor.model import TensorInfo


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
