"""`hprof predict`: from rates, fitted to a capture, and held against one."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import hprof
from profiler.capture import Capture
from profiler.cli.captured_request import captured_options, predicted_request
from tests.support import ROOT

SWEEP = str(ROOT / "traces" / "example-sweep")
RATES = ["predict", "-m", "tiny-moe", "-p", "256", "-n", "8", "-ub", "64,256", "--arms", "off,on,full"]
KNOWN = ["--gpu", "rtx4090", "--link", "gen4x16"]
Printed = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("own_cache")


def told(capsys: Printed, *words: str) -> dict:  # type: ignore[type-arg]
    assert hprof.main([*words, "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_from_rates_there_is_no_interval(capsys: Printed) -> None:
    found = told(capsys, *RATES, "--gpu", "rtx4090", "--link", "gen4x16")
    assert found["source"] == "predicted"
    assert [cell["n_ubatch"] for cell in found["cells"]] == [64, 256]
    arms = found["cells"][0]["arms"]
    assert arms["off"]["ttft_ns"]["low"] is None
    assert arms["full"]["ttft_ns"]["median"] < arms["on"]["ttft_ns"]["median"]
    assert found["notes"] == ["From rates alone: nothing says how far off they are, so no figure has an interval."]


def test_what_a_prediction_leaves_out_is_neither_ignored_nor_told_as_assumed(capsys: Printed, tmp_path: Path) -> None:
    path = str(tmp_path / "p")
    words = [*RATES, *KNOWN]
    first, *_ = told(capsys, *words, "--host-call-us", "9")["notes"]
    assert first.startswith("--host-call-us does nothing in a prediction")
    assert hprof.main([*words, "-o", path]) == 0
    capsys.readouterr()
    rates = told(capsys, "report", path)["measured"]["rates"]
    assert "launch_us" in rates
    assert "host_call_us" not in rates


def test_rates_of_no_machine_are_the_first_thing_said(capsys: Printed) -> None:
    assert hprof.main(RATES) == 0
    told = capsys.readouterr().out
    assert told.startswith("Rates of the device and the link are sim's defaults and no machine's")
    assert hprof.main([*RATES, "--device", "cpu"]) == 2
    assert "nobody measured how fast the cpu device of this machine is" in capsys.readouterr().err


def test_a_faster_link_helps_what_copies(capsys: Printed) -> None:
    slow, fast = (told(capsys, *RATES, "--link-gb-s", speed)["cells"][0]["arms"] for speed in ("2", "20"))
    assert slow["off"]["ttft_ns"]["median"] > fast["off"]["ttft_ns"]["median"]
    assert slow["full"]["ttft_ns"]["median"] == pytest.approx(fast["full"]["ttft_ns"]["median"], rel=1e-3)


def test_a_fit_takes_what_is_not_given_from_its_capture(capsys: Printed) -> None:
    found = told(capsys, "predict", "--fit", SWEEP, "-ub", "512", "-d", "0", "--arms", "on,hot")
    assert found["fitted_to"] == ["example-sweep"]
    [cell] = found["cells"]
    assert (cell["n_prompt"], cell["n_ubatch"]) == (2048, 512)
    assert list(cell["arms"]) == ["on", "hot"]
    ttft = cell["arms"]["on"]["ttft_ns"]
    assert ttft["low"] < ttft["median"] < ttft["high"]


def test_against_a_capture_tells_each_cell_and_what_is_to_blame(capsys: Printed) -> None:
    found = told(capsys, "predict", "--against", SWEEP)["against"]
    fitted = {(cell["n_ubatch"], cell["n_depth"]) for cell in found["cells"] if cell["fitted"]}
    assert fitted == {(128, 0), (1024, 0), (1024, 8192)}
    assert found["not_fitted"]["ttft"]["median"] < 0.05
    assert {cell["to_blame"]["step"] for cell in found["cells"]} <= {
        *("attn", "router", "experts", "copies of weights", "copy flags", "logits", "embed", "sample"),
    }


def test_the_terminal_shows_the_same(capsys: Printed) -> None:
    assert hprof.main(["predict", "--against", SWEEP]) == 0
    out = capsys.readouterr().out
    assert "predicted, not measured: qwen3-30b-a3b" in out
    assert "to blame" in out
    assert hprof.main(RATES) == 0
    assert "-p 256 -n 8 -ub 64 -d 0" in capsys.readouterr().out


def test_a_prediction_can_be_kept_as_a_capture(capsys: Printed, tmp_path: Path) -> None:
    path = str(tmp_path / "p")
    assert hprof.main([*RATES, "-o", path]) == 0
    capsys.readouterr()
    capture = Capture.open(path)
    assert capture.manifest.source == "predicted"
    assert "Predicted, not measured." in capture.warnings
    assert len(capture.passes) == 6
    report = told(capsys, "report", path)
    assert report["source"] == "predicted"
    assert report["cells"][0]["arms"]["on"]["ttft_ns"]["median"] > 0


def test_many_cells_are_answered(capsys: Printed) -> None:
    found = told(capsys, "predict", "-m", "tiny-dense", "-p", "64-1024+32", "-ub", "32-1024*2", "-d", "0-4096+256")
    assert len(found["cells"]) > 1000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fit", SWEEP, "--gpu", "rtx4090"], "--gpu and rates are not for --fit"),
        (["--fit", str(ROOT / "traces" / "nowhere")], "nowhere"),
        (["-m", "llama-3.1-8b", "--arms", "full", "--device-memory", "4GiB"], "4 GiB are free"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(words: list[str], said: str, capsys: Printed) -> None:
    assert hprof.main(["predict", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_what_nobody_asked_for_is_said_and_so_is_where_an_arm_pays(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "-m", "tiny-moe", *KNOWN, "--arms", "off,on"]
    assert hprof.main([*words, "-ub", "32-256*2"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Nobody said what is run: taken as -p 512 -n 16." in told
    assert "At -p 512 -d 0 the least TTFT is on's at -ub 256" in told
    assert "on is faster than off at every -ub that was asked for." in told
    assert hprof.main([*words, "-p", "64", "-n", "2", "-ub", "32"]) == 0
    assert "Nobody said" not in capsys.readouterr().out


def test_a_predicted_capture_names_no_processor_of_this_machine(tmp_path: Path) -> None:
    words = ["predict", "-m", "tiny-moe", "-p", "64", "-n", "2", *KNOWN, "-o", str(tmp_path / "c")]
    assert hprof.main(words) == 0
    machine = orjson.loads((tmp_path / "c" / "manifest.json").read_bytes())["machine"]
    assert set(machine) == {"device", "n_devices", "rates", "imagined_gpu", "imagined_link"}
    assert machine["imagined_gpu"] == "rtx4090"


def test_llama_cpp_is_predicted_by_its_own_scheduler(capsys: Printed) -> None:
    words = ["predict", "-m", "tiny-moe", "-p", "96", "-n", "4", "-ub", "96", "--gpu", "rtx4090", "--link", "gen4x16"]
    assert hprof.main([*words, "--for", "llama.cpp", "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert found["model"] == "tiny-moe in llama.cpp"
    assert found["notes"][0].startswith("llama.cpp's kernels are taken to reach a usual share")
    assert set(found["cells"][0]["arms"]) == {"off", "cpu"}
    assert hprof.main([*words, "--for", "llama.cpp", "--arms", "hot"]) == 2
    assert "llama.cpp has nothing like arm 'hot': ask for off, " in capsys.readouterr().err


def test_a_capture_tells_rates_for_llama_cpp_and_is_no_fit_to_it(capsys: Printed) -> None:
    words = ["predict", "--for", "llama.cpp", "--fit", SWEEP, "-ub", "128", "-d", "0"]
    slow, fast = (told(capsys, *words, "--link-gb-s", speed) for speed in ("2", "20"))
    assert slow["fitted_to"] == []
    assert "a usual share of the rates that the capture shows" in slow["notes"][0]
    ttft_ns = [found["cells"][0]["arms"]["off"]["ttft_ns"]["median"] for found in (slow, fast)]
    assert ttft_ns[0] > ttft_ns[1]
    assert hprof.main([*words, "--gpu", "rtx4090"]) == 2
    assert "--gpu and rates are not for --fit" in capsys.readouterr().err


def test_all_arms_of_a_capture_count_in_how_far_off_a_fit_is() -> None:
    options = captured_options(Capture.open(SWEEP).manifest, SWEEP)
    assert predicted_request(options.but(arms="off,auto,both")).arms == ("off", "auto", "both")


def test_auto_is_predicted_beside_what_it_chooses_from(capsys: Printed) -> None:
    words = ["-m", "tiny-moe", "-ub", "128", "-p", "512", "-n", "0", "--gpu", "rtx4090", "--link", "gen4x16"]
    (cell,) = told(capsys, "predict", *words, "--arms", "off,on,hot,auto")["cells"]
    taken = {arm: found["ttft_ns"]["median"] for arm, found in cell["arms"].items()}
    assert taken["auto"] == pytest.approx(min(taken[arm] for arm in ("off", "on", "hot")), rel=1e-6)
    assert cell["against_baseline"]["auto"]["ttft_ns"]["ratio"] < 1


def test_predictions_for_llama_cpp_place_by_its_memory_as_advice_does(capsys: pytest.CaptureFixture[str]) -> None:
    """A budget holds more of llama.cpp, whose slot is one tensor and whose embeddings stay on the host."""
    resident = {}
    for engine in ("hprof", "llama.cpp"):
        words = ["-m", "qwen3-30b-a3b", "--layers", "8", "--gpu", "rtx4090", "--link", "gen4x16", "--arms", "off"]
        words += ["--vram-budget", "3GiB", "-p", "512", "-n", "0", "-ub", "256", "--for", engine, "--json"]
        assert hprof.main(["predict", *words]) == 0
        [cell] = orjson.loads(capsys.readouterr().out)["cells"]
        resident[engine] = cell["arms"]["off"]["vram_resident_bytes"]
    assert resident["llama.cpp"] > resident["hprof"]
