"""Offload loops on a stand-in for torch.cuda: whole they are in order, and each wait that is left out is found."""

from __future__ import annotations

import pytest

from executor.errors import HprofError
from profiler.watching.checking import Check
from tests.profiler.watching.fake_cuda import FakeCuda, watching
from tests.profiler.watching.loops import CASES, FOUND, run_loop


@pytest.mark.parametrize(("name", "without"), CASES)
def test_what_is_left_out_is_found_and_nothing_else(name: str, without: str | None) -> None:
    check, cuda = watching()
    with check:
        run_loop(cuda, check, name, without)
    kinds = {(one.kind, one.second.stream) for one in check.result.violations}
    assert kinds == FOUND[name, without]
    assert all(one.pass_id is None and "in pass" not in str(one) for one in check.result.violations)


def test_a_finding_raises_at_the_end_and_names_the_lines() -> None:
    cuda = FakeCuda()
    with (
        pytest.raises(HprofError, match=r"'copy_ at loops\.py:\d+' on stream 1 of device 0") as raised,
        Check(runtime=cuda),
    ):
        run_loop(cuda, None, "double buffer", "ready")
    assert "let stream default wait for it before" in str(raised.value)


def test_an_error_of_the_code_inside_is_not_hidden() -> None:
    def fails() -> None:
        cuda = FakeCuda()
        with Check(runtime=cuda):
            run_loop(cuda, None, "double buffer", "ready")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fails()


def test_there_is_no_result_before_the_end() -> None:
    with pytest.raises(HprofError, match="no result before"):
        _ = Check(runtime=FakeCuda()).result
