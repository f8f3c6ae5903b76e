"""Known GPUs and links: every row is whole, names are found as people write them, and errors say what is near."""

from __future__ import annotations

import pytest

from executor.devices.known import find_gpu, find_link, known_gpus, known_links
from executor.errors import HprofError


def test_every_row_reaches_no_more_than_its_peak() -> None:
    assert len(known_gpus()) >= 20
    for gpu in known_gpus().values():
        assert 0 < gpu.gemm_tflop_s < gpu.peak_gemm_tflop_s
        assert 0 < gpu.memory_gb_s < gpu.peak_memory_gb_s
        assert gpu.memory_bytes >= 8 * 2**30
        assert gpu.source
    for link in known_links().values():
        assert 0 < link.gb_s <= link.peak_gb_s
        assert link.source


def test_names_are_found_however_they_are_written() -> None:
    assert find_gpu("RTX 4090").name == "rtx4090"
    assert find_link("Gen4 x16").name == "gen4x16"


@pytest.mark.parametrize(("find", "name", "near"), [(find_gpu, "rtx409", "rtx4090"), (find_link, "gen4x15", "gen4x16")])
def test_an_unknown_name_tells_the_near_ones(find, name, near) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(HprofError, match=f"'{name}' is not in the table: did you mean .*{near}"):
        find(name)


def test_nothing_near_lists_all() -> None:
    with pytest.raises(HprofError, match=r"known are t4, v100, .*Every rate can be given by a flag"):
        find_gpu("zzzz")
