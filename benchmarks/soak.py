"""Random runs on the cpu device, one after the other: nothing hangs, memory stays bounded, all arms compute the same.

    python benchmarks/soak.py                     # an hour
    python benchmarks/soak.py --minutes 10 --seed 7

Each round opens a session with a random model, placement, number of devices, slots, cache and link, and runs random
arms on random prompts with the order recorded. Some passes are cancelled at a random instant. Checked: tokens and
logits of the arms agree, `hprof check` finds nothing, no round takes longer than --round-limit-s (then the stacks are
printed), threads end with their session, and memory does not grow: the last quarter of the rounds against the second.
Prints the seed first and a line a minute; exit code 1 where something failed, with the round's settings.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import random
import resource
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from executor.devices.factory import DeviceOptions
from executor.errors import HprofError
from executor.model import Model, MoeFfn
from executor.models.load import load_model
from executor.passes import PassJob, PassResult
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.routing.spec import routing_from_spec
from executor.session import Session, SessionOptions
from executor.units import format_bytes
from profiler.ordering.check import find_violations
from profiler.ordering.operations import operations_of_records

SAME_LOGITS: Final = ("off", "off-whole", "on", "gated", "auto", "hot", "full")
WITH_EXPERTS: Final = ("cache", "hot+cache")
OVERRIDES: Final = (None, "ffn_.*=CPU", "attn_.*=CPU", r"blk\.[0-2]\..*=CPU", "(attn_(q|k)|ffn_down).*=CPU")
MOST_GROWTH: Final = 64 << 20
"""Bytes by which the last quarter may hold more than the second: allocators keep some of what was freed."""


class CancelledPassError(Exception):
    """Raised in the middle of a pass, as Ctrl-C is."""


@dataclass(frozen=True, slots=True)
class Round:
    """The settings of one round, drawn at random."""

    spec: str
    layers: int
    n_devices: int
    overrides: str | None
    arms: tuple[str, ...]
    n_prompt: int
    n_ubatch: int
    n_gen: int
    n_depth: int
    slots: int
    cache_bytes: int
    link_gb_s: float
    is_routed: bool
    """Whether a routing model chooses the experts, not the model's own router."""
    cancel_after_s: float | None


def draw(rng: random.Random) -> Round:
    """A round."""
    spec = rng.choice(["tiny-dense", "tiny-moe"])
    known = [*SAME_LOGITS, *(WITH_EXPERTS if spec == "tiny-moe" else ())]
    return Round(
        spec=spec,
        layers=rng.randint(2, 6),
        n_devices=rng.choice([1, 1, 2]),
        overrides=rng.choice(OVERRIDES),
        arms=tuple(rng.sample(known, rng.randint(2, 4))),
        n_prompt=rng.randint(1, 64),
        n_ubatch=rng.choice([4, 8, 17, 32, 64]),
        n_gen=rng.randint(0, 3),
        n_depth=rng.choice([0, 0, 50]),
        slots=rng.choice([2, 2, 3, 4]),
        cache_bytes=rng.choice([1 << 19, 1 << 21]),
        link_gb_s=rng.choice([0.5, 5.0, 100.0]),
        is_routed=rng.random() < 0.5,
        cancel_after_s=rng.uniform(0.001, 0.3) if rng.random() < 0.3 else None,
    )


def run_round(one: Round, seed: int) -> Counter[str]:
    """Run it. Raises AssertionError where arms disagree or the order is broken."""
    told: Counter[str] = Counter(rounds=1)
    model = load_model(one.spec, layers=one.layers)
    options = SessionOptions(
        DeviceOptions("cpu", n_devices=one.n_devices, n_threads=1, link_gb_s=one.link_gb_s),
        max_positions=one.n_depth + one.n_prompt + one.n_gen,
        max_ubatch=min(one.n_ubatch, one.n_prompt),
        max_ubatches=one.n_prompt + one.n_gen,
        policy=PolicyOptions(slots=one.slots, op_offload_min_batch=1, gate_min_batch=16, cache_bytes=one.cache_bytes),
        seed=seed,
        routing=routing_of(model, seed) if one.is_routed else None,
        record_ordering=True,
    )
    try:
        session = Session(model, place(model.tensors, overrides=one.overrides), one.arms, options)
    except HprofError as refused:
        return told + Counter({f"refused: {str(refused)[:60]}": 1})
    try:
        told += run_passes(session, one)
    except CancelledPassError:
        told["cancelled"] += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        session.close()
    return told


def run_passes(session: Session, one: Round) -> Counter[str]:
    """Every arm twice, then what they computed held together."""
    if one.cancel_after_s is not None:
        signal.setitimer(signal.ITIMER_REAL, one.cancel_after_s)
    passes: list[PassResult] = []
    for repetition in range(2):
        sizes = (one.n_prompt, one.n_gen, one.n_ubatch, one.n_depth, repetition)
        alike = [session.run_pass(PassJob(len(passes) + i, arm, *sizes)) for i, arm in enumerate(one.arms)]
        for what in ("tokens", "logits_digest"):
            assert len({str(getattr(result, what)) for result in alike}) == 1, f"{what} differ"
        passes += alike
    found = find_violations(operations_of_records([result.ordering for result in passes]))
    assert found.is_clean, "; ".join(found.lines())
    return Counter(passes=len(passes), operations=found.n_operations)


def routing_of(model: Model, seed: int) -> Any:
    """A routing model for what has experts; None for what has none."""
    moe = {i: layer.ffn for i, layer in enumerate(model.shape.layers) if isinstance(layer.ffn, MoeFfn)}
    if not moe:
        return None
    first = next(iter(moe.values()))
    return routing_from_spec("lognormal", layers=list(moe), n_experts=first.n_experts, n_used=first.n_used, seed=seed)


def resident_bytes() -> int:
    """What the process holds in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def soak(minutes: float, seed: int, round_limit_s: float) -> int:
    """Rounds until the time is over; the exit code."""
    rng, told, held = random.Random(seed), Counter[str](), list[int]()
    began, spoke = time.monotonic(), time.monotonic()
    n_threads = threading.active_count()
    while time.monotonic() - began < 60 * minutes:
        one = draw(rng)
        faulthandler.dump_traceback_later(round_limit_s, exit=True)
        try:
            told += run_round(one, seed)
            assert threading.active_count() == n_threads, f"threads are left: {threading.enumerate()}"
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the round's settings must be told
            print(f"FAILED, seed {seed}, round {told['rounds']}: {asdict(one)}\n{type(error).__name__}: {error}")
            return 1
        finally:
            faulthandler.cancel_dump_traceback_later()
        gc.collect()
        held.append(resident_bytes())
        if time.monotonic() - spoke >= 60:
            spoke = time.monotonic()
            print(f"{(spoke - began) / 60:.0f} min: {dict(told)}, {format_bytes(held[-1])} held", flush=True)
    return judged(told, held, minutes, seed)


def judged(told: Counter[str], held: list[int], minutes: float, seed: int) -> int:
    """Say what was done and whether memory grew; the exit code."""
    quarter = max(1, len(held) // 4)
    second, last = median(held[quarter : 2 * quarter] or held), median(held[-quarter:])
    print(f"seed {seed}, {minutes:g} minutes: {dict(told)}")
    print(f"memory: {format_bytes(second)} in the second quarter, {format_bytes(last)} in the last")
    return int(last - second > MOST_GROWTH)


def main() -> int:
    """Soak as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time, printed")
    parser.add_argument("--round-limit-s", type=float, default=120.0, help="a round that takes longer hangs")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)

    def cancel(*_: object) -> None:
        raise CancelledPassError

    signal.signal(signal.SIGALRM, cancel)
    return soak(options.minutes, seed, options.round_limit_s)


if __name__ == "__main__":
    sys.exit(main())
