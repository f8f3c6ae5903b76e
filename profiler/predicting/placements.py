"""Which weights stay in host memory: other choices than the first layers', and how llama.cpp is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from executor.model import Model, layer_of, short_name_of
from executor.placement.place import Placement


def spread(model: Model, placement: Placement, device_of: Sequence[int]) -> Placement | None:
    """As many layers of each device in host memory, spread evenly over those that ask for the same; None: no others.

    Where layers that stream lie between layers that do not, a copy ahead has several layers' compute to hide under.
    """
    on_host = placement.host_layers()
    alike: dict[tuple[object, int], list[int]] = defaultdict(list)
    for layer, tensors in enumerate(_host_tensors(model, placement)):
        alike[tensors, device_of[layer]].append(layer)
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


def trimmed(model: Model, placement: Placement, room_bytes: int) -> Placement | None:
    """The same with as many bytes of its last layer's tensors resident as there is room for; None: not even one is."""
    last = placement.host_layers()[-1]
    # of tensors as large, up rather than gate: llama.cpp's CPU then has neighbours in the graph, gate and down
    names = sorted((name for name in placement.host if model.tensors[name].layer == last), reverse=True)
    most, kept = 0, frozenset[str]()
    for chosen in (frozenset(some) for n in range(1, len(names)) for some in combinations(names, n)):
        n_bytes = sum(model.tensors[name].n_bytes for name in chosen)
        if most < n_bytes <= room_bytes:
            most, kept = n_bytes, chosen
    return Placement(placement.host - kept, f"{placement.spelled}, but for a part of layer {last}") if kept else None


def thin(model: Model, placement: Placement) -> Iterator[frozenset[str]]:
    """Single kinds of tensor (short names) of which more layers may be in host memory instead, the largest first."""
    n_bytes: dict[str, int] = defaultdict(int)
    for name in placement.host:
        n_bytes[short_name_of(name)] += model.tensors[name].n_bytes
    if len(n_bytes) > 1:
        yield frozenset([max(sorted(n_bytes), key=lambda name: n_bytes[name])])


def override_of(model: Model, placement: Placement) -> str | None:
    """The placement as `-ot` takes it, here and in llama.cpp; None where everything is resident."""
    return ";".join(_override(model, names, layers) for names, layers in host_kinds(placement).items()) or None


def host_kinds(placement: Placement) -> dict[tuple[str, ...], list[int]]:
    """Layers by which of their tensors are in host memory: short names without `.weight`, in order."""
    by_layer: dict[int, list[str]] = defaultdict(list)
    for name in placement.host:
        layer = layer_of(name)
        assert layer is not None
        by_layer[layer].append(short_name_of(name).removesuffix(".weight"))
    kinds: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for layer in sorted(by_layer):
        kinds[tuple(sorted(by_layer[layer]))].append(layer)
    return kinds


def _override(model: Model, names: Sequence[str], layers: Sequence[int]) -> str:
    """These tensors of these layers."""
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
