"""Layers told from kernels alone: right or null, over models of many kinds; found where the pattern is plain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.importers.patterns import NOTHING, KernelSequence, Repeats, find_repeats, hashes

ATTENTION, LINEAR, GATHER, PRODUCT = 0, 1, 2, 3  # names; from here on others
NORM, QUANT, ADD, ROPE, ACT, COPY, OTHER = range(4, 11)
LOOKUP_IN_LAYER = 11
UNKNOWN = (LINEAR, *range(90, 100))

PRE = [NORM, QUANT, PRODUCT, QUANT, PRODUCT, ROPE]
POST = [QUANT, 12, ADD, NORM, 13, ACT, 14, 15]
N_NULL = 4  # kernels of each layer next to where it may end


@dataclass(frozen=True)
class Layer:
    """Kernels before the mixer, the mixer, kernels after it."""

    pre: list[int]
    post: list[int]
    mixer: int = ATTENTION

    @property
    def kernels(self) -> list[int]:
        return [*self.pre, self.mixer, *self.post]


def _trace(ubatches: list[tuple[list[int], list[Layer], list[int]]]) -> tuple[list[int], list[tuple[int, int]]]:
    """Names, and the true (ubatch, layer) of each; layer -1 outside of layers."""
    names: list[int] = []
    truth: list[tuple[int, int]] = []
    for ubatch, (prologue, layers, epilogue) in enumerate(ubatches):
        parts = [(-1, prologue), *((i, layer.kernels) for i, layer in enumerate(layers)), (-1, epilogue)]
        for number, kernels in parts:
            names += kernels
            truth += [(ubatch, number)] * len(kernels)
    return names, truth


def _found(names: list[int]) -> Repeats | None:
    codes = np.array(names, np.int64)
    return find_repeats(
        KernelSequence(
            codes,
            codes == ATTENTION,
            np.isin(codes, (GATHER, LOOKUP_IN_LAYER)),
            np.isin(codes, (PRODUCT, 12, 13)),
            ~np.isin(codes, UNKNOWN),
        )
    )


def _wrong(found: Repeats | None, truth: list[tuple[int, int]]) -> int:
    """How many labels are not the truth; null is never wrong."""
    if found is None:
        return 0
    ubatch, layer = np.array(truth).T
    told_ubatch, told_layer = found.ubatch != NOTHING, found.layer != NOTHING
    return int((told_ubatch & (found.ubatch != ubatch)).sum() + (told_layer & (found.layer != layer)).sum())


def _plain(n_layers: int = 6, n_ubatches: int = 3) -> list[tuple[list[int], list[Layer], list[int]]]:
    layers = [Layer(PRE, POST)] * n_layers
    return [([GATHER, COPY], layers, [NORM, OTHER])] * n_ubatches


def test_a_plain_model_is_found() -> None:
    names, truth = _trace(_plain())
    found = _found(names)
    assert found is not None
    assert found.attention.shape == (3, 6)
    assert _wrong(found, truth) == 0
    # besides, the final norm looks like the next layer's first kernel
    assert np.count_nonzero(found.layer != NOTHING) == 3 * 6 * (len(PRE) + 1 + len(POST) - N_NULL - 1)


def test_prefill_and_decode_may_use_other_kernels() -> None:
    decode = [Layer([20, 21, 22, 23, ROPE, 30], [24, 25, 26, ADD, 27, 31])] * 6
    names, truth = _trace([*_plain(), *[([GATHER, COPY], decode, [NORM, 28, 29])] * 4])
    found = _found(names)
    assert found is not None
    assert found.attention.shape == (7, 6)
    assert _wrong(found, truth) == 0
    assert set(found.layer[found.ubatch == 6].tolist()) == {NOTHING, *range(6)}


def test_without_an_embedding_only_ubatches_are_told() -> None:
    ubatches = [([COPY], layers, epilogue) for _, layers, epilogue in _plain()]
    found = _found(_trace(ubatches)[0])
    assert found is not None
    assert (found.layer == NOTHING).all()
    assert set(found.ubatch.tolist()) == {NOTHING, 0, 1, 2}


def test_rows_picked_in_the_last_layer_are_no_embedding() -> None:
    """llama.cpp picks the rows whose logits are wanted, after the last attention."""
    last = Layer(PRE, [QUANT, 12, LOOKUP_IN_LAYER, *POST[2:]])
    ubatches = [([COPY], [*layers[:-1], last], [NORM, 12]) for _, layers, _ in _plain()]
    names, truth = _trace(ubatches)
    found = _found(names)
    assert _wrong(found, truth) == 0
    assert found is None or (found.layer == NOTHING).all()


def test_several_layers_to_one_attention_have_no_layer() -> None:
    ubatches = [([GATHER], [GDN, GDN, GDN, Layer(PRE, POST)] * 5, [OTHER])] * 3
    names, truth = _trace(ubatches)
    found = _found(names)
    assert found is not None
    assert (found.layer == NOTHING).all()
    assert set(found.ubatch.tolist()) == {NOTHING, 0, 1, 2}
    assert _wrong(found, truth) == 0


def test_ubatches_of_one_layer_are_no_layers() -> None:
    """As of a draft model: four steps of prefill and four of decode look like two ubatches of four layers."""
    prefill = ([GATHER, COPY], [Layer(PRE, POST)], [NORM, OTHER])
    decode = ([GATHER, COPY], [Layer([20, 21, 22, 23, ROPE, 30], [24, 25, 26, ADD, 27, 31])], [NORM, 28])
    assert _found(_trace([*[prefill] * 4, *[decode] * 4])[0]) is None


GDN = Layer([NORM, QUANT, PRODUCT, 30], [31, 32, ADD, NORM, 13, ACT, 14, 15], LINEAR)
CASES = {
    "a window that begins inside an ubatch": _trace(_plain())[0][40:],
    "a window that ends inside an ubatch": _trace(_plain())[0][:-40],
    "one ubatch": _trace(_plain(n_ubatches=1))[0],
    "three layers": _trace(_plain(n_layers=3))[0],
    "one block over and over": Layer(PRE, POST).kernels * 40,
    "dense and sparse by turns": _trace(
        [([GATHER], [Layer(PRE, POST), Layer(PRE, [QUANT, 12, ADD, NORM, 40, 41, 42])] * 5, [OTHER])] * 3
    )[0],
    "first layers of another kind": _trace(
        [([GATHER], [*[Layer(PRE, [QUANT, 12, ADD, 50, 51])] * 3, *[Layer(PRE, POST)] * 5], [OTHER])] * 3
    )[0],
    "a first layer with kernels of its own": _trace(
        [
            (
                [GATHER],
                [Layer([NORM, QUANT, PRODUCT, QUANT, PRODUCT, 60, ROPE], POST), *[Layer(PRE, POST)] * 5],
                [NORM, QUANT, PRODUCT, QUANT, OTHER],
            )
        ]
        * 3
    )[0],
    "ubatches of other lengths": _trace([*_plain(6, 1), *_plain(7, 1), *_plain(6, 1)])[0],
    "no kernel": [],
}


@pytest.mark.parametrize("names", CASES.values(), ids=CASES.keys())
def test_what_is_not_certain_stays_null(names: list[int]) -> None:
    assert _found(names) is None


_PART = st.lists(st.integers(PRODUCT, 16), min_size=1, max_size=9)
_OWN = st.lists(st.integers(PRODUCT, 16), min_size=1, max_size=3)
_SHARED = st.lists(st.integers(PRODUCT, 16), min_size=8, max_size=12)


@st.composite
def _models(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """Prefill and decode ubatches of a model of one to three kinds of layers, its ends maybe with more kernels.

    The kinds have their FFN in common; a mixer may have a name that nobody knows.
    """
    ubatches = []
    order = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
    n_repeats = draw(st.integers(1, 6))
    ends = draw(st.tuples(st.booleans(), st.booleans()))
    for _ in range(draw(st.integers(1, 2))):
        ffn, mixers = draw(_SHARED), st.sampled_from([ATTENTION] * 4 + [LINEAR])
        kinds = [Layer(draw(_OWN), draw(_OWN) + ffn, draw(mixers)) for _ in range(3)]
        layers = [kinds[kind] for kind in order] * n_repeats
        extra = draw(_PART)
        at = draw(st.integers(0, 9))
        if ends[0]:
            pre = layers[0].pre
            layers[0] = Layer([*pre[:at], *extra, *pre[at:]], layers[0].post, layers[0].mixer)
        if ends[1]:
            post = layers[-1].post
            layers[-1] = Layer(layers[-1].pre, [*post[:at], *extra, *post[at:]], layers[-1].mixer)
        prologue, epilogue = [GATHER, *draw(_PART)[1:]], draw(_PART)
        ubatches += [(prologue, layers, epilogue)] * draw(st.integers(1, 4))
    return _trace(ubatches)


@given(_models())
@settings(max_examples=400, deadline=None)
def test_no_model_is_told_wrongly(model: tuple[list[int], list[tuple[int, int]]]) -> None:
    names, truth = model
    assert _wrong(_found(names), truth) == 0


@given(st.lists(st.integers(0, 3), max_size=40), st.data())
@settings(max_examples=100, deadline=None)
def test_equal_stretches_have_equal_hashes_and_no_others(values: list[int], data: st.DataObject) -> None:
    bounds = st.tuples(st.integers(0, len(values)), st.integers(0, len(values))).map(sorted)
    (a, b), (c, d) = data.draw(bounds), data.draw(bounds)
    one, other = hashes(np.array(values, np.int64), np.array([a, c]), np.array([b, d]))
    assert (one == other) == (values[a:b] == values[c:d])
