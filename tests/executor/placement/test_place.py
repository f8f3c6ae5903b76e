"""llama.cpp's placement options, on real tensor names."""

from __future__ import annotations

import signal
import time

import pytest

from executor.errors import HprofError
from executor.model import Model, TensorInfo
from executor.models.load import load_model
from executor.placement.overrides import DEFAULT_OVERRIDE, parse_overrides, regex_timeout, split_configurations
from executor.placement.place import devices_of, layers_to_devices, place


@pytest.fixture(scope="module")
def dense() -> Model:
    return load_model("tiny-dense")


@pytest.fixture(scope="module")
def moe() -> Model:
    return load_model("tiny-moe")


def test_the_default_is_every_ffn_matrix(dense: Model, moe: Model) -> None:
    placement = place(dense.tensors)
    assert placement.host == {f"blk.{i}.ffn_{k}.weight" for i in range(8) for k in ("gate", "up", "down")}
    assert placement.spelled == f"-ot {DEFAULT_OVERRIDE}"
    assert placement.host_layers() == list(range(8))
    assert place(moe.tensors).host == {
        f"blk.{i}.ffn_{k}_exps.weight" for i in range(6) for k in ("gate", "up", "down")
    }  # routers and norms stay


def test_shared_experts_and_dense_first_layers_stay_as_with_ncmoe() -> None:
    model = load_model("glm-4.5-air", layers=3)
    assert any("_shexp" in name for name in model.tensors)
    assert any(name.startswith("blk.0.ffn_up.") for name in model.tensors)
    assert place(model.tensors).host == place(model.tensors, n_cpu_moe=3).host
    assert {name.split(".")[2] for name in place(model.tensors).host} == {
        f"ffn_{k}_exps" for k in ("gate", "up", "down")
    }


def test_the_first_override_that_matches_decides(dense: Model) -> None:
    placement = place(dense.tensors, overrides=r"blk\.[0-3]\.=GPU;ffn_up=CPU")
    assert placement.host == {f"blk.{i}.ffn_up.weight" for i in range(4, 8)}
    assert placement.host_layers() == [4, 5, 6, 7]


def test_an_override_is_stronger_than_counts_of_layers(dense: Model, moe: Model) -> None:
    first = [f"blk.0.ffn_{k}_exps.weight" for k in ("gate", "up", "down")]
    second = [name.replace("blk.0", "blk.1") for name in first]
    assert place(moe.tensors, overrides=r"blk\.0\.ffn=GPU", n_cpu_moe=2).host == set(second)
    assert not any("ffn" in name for name in place(dense.tensors, overrides="ffn=GPU", n_gpu_layers=0).host)


def test_overrides_search_as_llama_cpp_does(dense: Model) -> None:
    assert place(dense.tensors, overrides="attn_q=CPU").host == {f"blk.{i}.attn_q.weight" for i in range(8)}
    assert place(dense.tensors, overrides=r"^blk\.7\.ffn_down\.weight$=CPU").host == {"blk.7.ffn_down.weight"}


@pytest.mark.parametrize("buffer", ["CPU", "cpu", "HOST"])
def test_host_buffers(dense: Model, buffer: str) -> None:
    assert len(place(dense.tensors, overrides=f"ffn_up={buffer}").host) == 8


@pytest.mark.parametrize("buffer", ["GPU", "GPU0", "CUDA0", "cuda"])
def test_device_buffers(dense: Model, buffer: str) -> None:
    assert place(dense.tensors, overrides=f"ffn_up={buffer}").host == frozenset()


def test_the_pattern_may_hold_an_equals_sign() -> None:
    [override] = parse_overrides("a=b=CPU")
    assert override.pattern.pattern == "a=b"


def test_configurations_and_overrides_split_as_in_llama_bench() -> None:
    assert split_configurations("a=CPU;b=GPU, ,c=CPU") == ["a=CPU;b=GPU", "", "c=CPU"]
    assert parse_overrides("") == []


def test_n_cpu_moe_takes_the_first_layers(moe: Model) -> None:
    placement = place(moe.tensors, n_cpu_moe=2)
    assert placement.host_layers() == [0, 1]
    assert all("_exps" in name for name in placement.host)
    assert placement.spelled == "-ncmoe 2"


@pytest.mark.parametrize(
    ("n", "host_layers"),
    [
        (0, list(range(8))),
        (1, list(range(8))),  # the output alone is kept
        (2, list(range(7))),
        (3, [0, 1, 2, 3, 4, 5]),
        (8, [0]),
        (9, []),
        (99, []),
        (-1, []),
    ],
)
def test_n_gpu_layers_keeps_the_output_and_the_last_layers(dense: Model, n: int, host_layers: list[int]) -> None:
    """llama.cpp, src/llama-model.cpp, load_tensors: i_gpu_start = max(n_layer + 1 - n_gpu_layers, 0)."""
    placement = place(dense.tensors, n_gpu_layers=n)
    assert placement.host_layers() == host_layers
    assert placement.spelled == ("-ngl all" if n < 0 else f"-ngl {n}")
    assert not any("norm" in name or "embd" in name for name in placement.host)


@pytest.mark.parametrize(
    ("n_layers", "shares", "layers", "output"),
    [
        (8, (1,), [8], 0),
        (8, (1, 1), [5, 3], 1),
        (8, (3, 1), [7, 1], 1),
        (8, (1, 3), [3, 5], 1),
        (32, (1, 1), [17, 15], 1),
        (32, (3, 1), [25, 7], 1),
        (32, (1, 1, 1), [11, 11, 10], 2),
        (48, (24, 16), [30, 18], 1),
        (48, (1, 1, 1, 1), [13, 12, 12, 11], 3),
        (36, (0.6, 0.4), [23, 13], 1),
        (4, (1, 1, 1), [2, 2, 0], 2),  # the last device has the output alone
        (2, (1, 1), [2, 0], 1),
    ],
)
def test_tensor_split_counts_the_output_as_a_layer(
    n_layers: int, shares: tuple[float, ...], layers: list[int], output: int
) -> None:
    """Worked out from the same function: upper_bound(shares added up, (il - i_gpu_start) / (n_layer + 1))."""
    *device_of, last = layers_to_devices(n_layers, shares)
    assert [device_of.count(device) for device in range(len(shares))] == layers
    assert device_of == sorted(device_of)
    assert last == output


@pytest.mark.parametrize("shares", [(100, 1), (1, 100, 1), (1, 1, 1, 1)])
def test_a_device_without_anything_is_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(HprofError, match="leaves a device without any of the 2 layers and without the output"):
        layers_to_devices(2, shares)


@pytest.mark.parametrize(
    ("name", "alone", "tied"),
    [
        ("blk.1.ffn_up.weight", {1}, {1}),
        ("output.weight", {2}, {2}),
        ("output_norm.weight", {2}, {2}),
        ("token_embd.weight", {0}, {0, 2}),
    ],
)
def test_the_embedding_is_the_first_devices_the_output_the_lasts(name: str, alone: set[int], tied: set[int]) -> None:
    tensor = TensorInfo(name, "F32", (4, 4), 64)
    assert devices_of(tensor, [0, 1, 2], tied_embeddings=False) == alone
    assert devices_of(tensor, [0, 1, 2], tied_embeddings=True) == tied


def test_a_device_is_obeyed_where_its_layers_run(dense: Model) -> None:
    device_of = layers_to_devices(8, (1, 1))
    taken = place(dense.tensors, overrides=r"blk\.[0-4]\.ffn=CUDA0;blk\.7\.ffn=CUDA1;ffn=CPU", device_of=device_of)
    assert taken.host_layers() == [5, 6]


@pytest.mark.parametrize(
    ("buffer", "n_devices", "message"),
    [
        ("CUDA7", 1, "this run has device 0 alone; give --n-devices 8"),
        ("GPU2", 2, "this run has devices 0 to 1; give --n-devices 3"),
        ("CUDA1", 2, "sends blk.0.ffn_up.weight to device 1, but layer 0 runs on device 0"),
        ("CUDA0", 2, "sends blk.5.ffn_up.weight to device 0, but layer 5 runs on device 1"),
    ],
)
def test_another_device_is_refused_by_name(dense: Model, buffer: str, n_devices: int, message: str) -> None:
    with pytest.raises(HprofError, match=f"^-ot 'ffn_up={buffer}'") as caught:
        place(dense.tensors, overrides=f"ffn_up={buffer}", device_of=layers_to_devices(8, (1.0,) * n_devices))
    assert message in str(caught.value)


def test_an_override_that_is_left_nothing_is_told(dense: Model) -> None:
    placement = place(dense.tensors, overrides="ffn=CPU;ffn_up=GPU")
    assert placement.notes == (
        "-ot 'ffn_up=GPU' changes nothing: overrides before it decide all 8 weights that it matches.",
    )
    assert len(placement.host) == 24


@pytest.mark.parametrize("pattern", ["output.weight", r"output\.weight", "output"])
def test_a_pattern_that_takes_others_than_it_names_is_told(dense: Model, pattern: str) -> None:
    placement = place(dense.tensors, overrides=f"{pattern}=CPU")
    assert placement.host == {f"blk.{i}.attn_output.weight" for i in range(8)}
    [note] = placement.notes
    assert note.endswith(
        "moves blk.0.attn_output.weight and 7 more, and not output.weight, which always stays resident."
    )


@pytest.mark.parametrize("overrides", ["ffn=CPU", ".*=CPU", "attn_output=CPU", r"blk\.0\.=CPU"])
def test_a_pattern_that_takes_what_it_names_is_not_told(dense: Model, overrides: str) -> None:
    assert place(dense.tensors, overrides=overrides).notes == ()


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        (r"blk\.[[:digit:]]\.ffn_up", list(range(8))),
        (r"blk\.[^[:alpha:]2-9]\.ffn_up", [0, 1]),
        (r"blk\.[[:d:]]\.ffn_up", list(range(8))),
        (r"blk\.[[:digit:][:lower:]]\.ffn_up", list(range(8))),
        (r"blk\.[:0-3:]\.ffn_up", [0, 1, 2, 3]),  # a set that holds colons
    ],
)
def test_posix_classes(dense: Model, pattern: str, layers: list[int]) -> None:
    assert place(dense.tensors, overrides=f"{pattern}=CPU").host_layers() == layers


def test_an_unknown_posix_class_is_named() -> None:
    with pytest.raises(HprofError, match=r"there is no class \[:digits:\]"):
        parse_overrides("blk.[[:digits:]]=CPU")


def test_options_add_up(moe: Model) -> None:
    placement = place(moe.tensors, overrides="attn_k=CPU", n_cpu_moe=1)
    assert len(placement.host) == 6 + 3
    assert placement.spelled == "-ot attn_k=CPU -ncmoe 1"


@pytest.mark.parametrize(
    ("pattern", "name"), [("norm", "norm"), ("token_embd", "token_embd"), ("gate_inp", "gate_inp")]
)
def test_a_pattern_of_what_cannot_move_says_so(moe: Model, pattern: str, name: str) -> None:
    with pytest.raises(HprofError, match=f"-ot '{pattern}' matches .*{name}.* and no weight that can move"):
        place(moe.tensors, overrides=f"{pattern}=CPU")


def test_a_comma_inside_a_pattern_is_explained(dense: Model) -> None:
    [first, _] = split_configurations(r"blk\.[0-9]{1,2}\.ffn=CPU")
    with pytest.raises(HprofError, match="',' separates configurations"):
        place(dense.tensors, overrides=first)


def test_a_pattern_that_matches_nothing_names_near_ones(dense: Model) -> None:
    with pytest.raises(HprofError, match=r"-ot 'ffn_gates' matches no weight of the model; near ones are ffn_gate"):
        place(dense.tensors, overrides="ffn_gates=CPU")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ffn_up", "has no '='"),
        ("=CPU", "has no pattern before its '='"),
        ("ffn_up=DISK", "names the buffer 'DISK'"),
        ("ffn_(up=CPU", "is not a regular expression"),
    ],
)
def test_what_is_no_override_is_refused(text: str, message: str) -> None:
    with pytest.raises(HprofError, match=message.replace("(", r"\(")):
        parse_overrides(text)


@pytest.mark.parametrize("pattern", ["^([a-z0-9_.]+)+Z", ".*" * 30 + "Z"])
def test_patterns_that_would_take_years_are_stopped(moe: Model, pattern: str) -> None:
    with pytest.raises(HprofError, match="takes longer than 2 s to match"):
        place(moe.tensors, overrides=f"{pattern}=CPU")


@pytest.mark.parametrize("pattern", ["x" * 5000, "(" * 3000, "x{99999999999}"])
def test_absurd_patterns_are_short_sentences(moe: Model, pattern: str) -> None:
    with pytest.raises(HprofError) as caught:
        place(moe.tensors, overrides=f"{pattern}=CPU")
    assert len(str(caught.value)) < 400


def test_the_limit_leaves_others_alarms_as_they_were() -> None:
    rang: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, _: rang.append(number))
    before = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(TimeoutError), regex_timeout(0.05):
            time.sleep(5)
        while not rang:  # the suite's timeout ends a wait for nothing
            time.sleep(0.01)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)
    assert rang == [signal.SIGALRM]
