"""Which layers live on which of several devices: llama.cpp's `-ts`."""

from __future__ import annotations

from collections.abc import Sequence

from executor.errors import HprofError


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
