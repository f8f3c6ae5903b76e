"""Which layers' weights stay in host memory: another choice of as many, and how llama.cpp is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from executor.model import Model, short_name_of
from executor.placement.place import Placement


def spread(model: Model, placement: Placement) -> Placement | None:
    """As many layers in host memory, evenly spread over each run of layers that ask for the same; None: the same ones.

    Where layers that stream lie between layers that do not, a copy ahead has several layers' compute to hide under.
    """
    on_host = placement.host_layers()
    alike: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for layer, tensors in enumerate(_host_tensors(model, placement)):
        alike[tensors].append(layer)
    chosen = []
    for layers in alike.values():
        n = sum(layer in on_host for layer in layers)
        chosen += [layers[(2 * i + 1) * len(layers) // (2 * n)] for i in range(n)]
    if sorted(chosen) == on_host:
        return None
    kinds = {short_name_of(name) for name in placement.host}
    host = frozenset(
        name for name, tensor in model.tensors.items() if tensor.layer in set(chosen) and tensor.short_name in kinds
    )
    return Placement(host, f"layers {_regex_numbers(sorted(chosen))} in host memory")


def override_of(model: Model, placement: Placement) -> str | None:
    """The placement as `-ot` takes it, here and in llama.cpp; None where everything is resident."""
    layers = placement.host_layers()
    if not layers:
        return None
    names = sorted({short_name_of(name).removesuffix(".weight") for name in placement.host})
    common = "_exps" if all(name.endswith("_exps") for name in names) else ""
    parts = "|".join(name.removeprefix("ffn_").removesuffix(common) for name in names)
    is_ffn = all(name.startswith("ffn_") for name in names)
    tensors = rf"ffn_({parts}){common}" if is_ffn else f"({'|'.join(names)})"
    if len(layers) == len(model.shape.layers):
        return f"{tensors}=CPU"
    return rf"blk\.({_regex_numbers(layers)})\.{tensors}=CPU"


def _regex_numbers(layers: Sequence[int]) -> str:
    return "|".join(map(str, layers))


def _host_tensors(model: Model, placement: Placement) -> list[tuple[tuple[str, int], ...]]:
    """What of each layer would stream: the names and sizes of its tensors that are of the placement's kinds."""
    kinds = {short_name_of(name) for name in placement.host}
    found: list[list[tuple[str, int]]] = [[] for _ in model.shape.layers]
    for tensor in model.tensors.values():
        if tensor.layer is not None and tensor.short_name in kinds:
            found[tensor.layer].append((tensor.short_name, tensor.n_bytes))
    return [tuple(sorted(of_layer)) for of_layer in found]
