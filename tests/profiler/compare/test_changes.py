"""What `CAPTURE#PART` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.errors import HprofError
from profiler.compare.sides import open_side
from profiler.manifest import ManifestArm
from profiler.storage.writer import PassKey, new_capture
from tests.profiler.makers import dense_off_on


@pytest.mark.parametrize(
    ("part", "arm", "wanted"),
    [
        ("", None, {}),
        ("#on", "on", {}),
        ("#on,ub=512", "on", {"n_ubatch": 512}),
        ("#p=8,n=2,on,d=0", "on", {"n_prompt": 8, "n_gen": 2, "n_depth": 0}),
        ("#ub=4", None, {"n_ubatch": 4}),
        ("#ot=ffn_(a|b){1,2}=CPU,ub=4", "ot=ffn_(a|b){1,2}=CPU", {"n_ubatch": 4}),
        ("#ncmoe=99 lm=none", "ncmoe=99 lm=none", {}),
    ],
)
def test_a_part_is_an_arm_and_sizes_in_any_order(
    tmp_path: Path, part: str, arm: str | None, wanted: dict[str, int]
) -> None:
    dense_off_on(tmp_path / "c", 1)
    side = open_side(f"{tmp_path / 'c'}{part}")
    assert (side.arm, side.wanted) == (arm, wanted)


def test_warmups_are_never_compared(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "c", 3)
    assert len(open_side(str(tmp_path / "c")).passes) == 6


def test_a_part_that_is_not_there_names_what_is(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "c", 1)
    with pytest.raises(HprofError, match="'off', 'on'"):
        _ = open_side(f"{tmp_path / 'c'}#hot").passes
    with pytest.raises(HprofError, match=r"no measured pass .* its arms are 'off', 'on'; it has ub=4[.]"):
        _ = open_side(f"{tmp_path / 'c'}#on,ub=512").passes


def test_groups_are_cells_with_unknown_sizes_too(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", source="kineto", arms=[ManifestArm("trace")])
    for order in range(2):
        writer.add_pass_row(order, PassKey("trace", repetition=order, order=order))
    writer.finish()
    ((cell, arm),) = open_side(str(tmp_path / "c")).groups
    assert (cell.flags, cell.n_tokens, arm) == ("all passes", None, "trace")


def test_a_folder_may_have_a_hash_in_its_name(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "we=ird#x.md")
    assert open_side(f"{tmp_path / 'we=ird#x.md'}").arm is None
    assert open_side(f"{tmp_path / 'we=ird#x.md'}#on").arm == "on"
