"""Arms of a llama-bench run: which flags go to which, under one build or several."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from executor.errors import HprofError
from profiler.engines.arms import EngineArm, check_distinct, flag_arm

# a list that is given twice grows in llama-bench: a flag goes to an arm once, however it is spelled
_LONG: Final = {
    "--model": "-m",
    "--n-prompt": "-p",
    "--n-gen": "-n",
    "--ubatch-size": "-ub",
    "--n-depth": "-d",
    "--repetitions": "-r",
    "--override-tensor": "-ot",
    "--n-cpu-moe": "-ncmoe",
    "--n-gpu-layers": "-ngl",
    "--load-mode": "-lm",
    "--threads": "-t",
    "--flash-attn": "-fa",
    "--batch-size": "-b",
    "--split-mode": "-sm",
    "--tensor-split": "-ts",
    "--cache-type-k": "-ctk",
    "--cache-type-v": "-ctv",
    "--main-gpu": "-mg",
    "--device": "-dev",
    "--mmap": "-mmp",
    "--direct-io": "-dio",
    "--no-kv-offload": "-nkvo",
    "--no-op-offload": "-nopo",
    "--embeddings": "-embd",
}
_FLAG: Final = re.compile(r"--?[A-Za-z]")  # -1 is a value


def parse_arm(text: str) -> EngineArm:
    """Read `NAME=FLAGS`; HprofError for what is none, and for a split that llama-bench would take for two runs."""
    arm = flag_arm(text)
    _check_split(arm)
    return arm


def _check_split(arm: EngineArm) -> None:
    """llama-bench would take llama-server's `-ts 3,1` for two runs on one device each."""
    for flag, value in itertools.pairwise(arm.words):
        if flag in ("-ts", "--tensor-split") and "," in value and "/" not in value:
            raise HprofError(
                f"--arm {arm.name}: {flag} {value[:60]} is llama-server's spelling, and two configurations for "
                f"llama-bench; write {flag} {value[:60].replace(',', '/')}."
            )


def parse_arms(texts: tuple[str, ...]) -> tuple[EngineArm, ...]:
    """Read every `--arm`; HprofError where two have one name."""
    arms = tuple(map(parse_arm, texts))
    check_distinct(arms)
    return arms


def without_overridden(common: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """The flags of all arms less those, with their values, that an arm sets itself."""
    taken = {_LONG.get(word, word) for word in own if _FLAG.match(word)}
    kept: list[str] = []
    is_dropped = False
    for word in common:
        if _FLAG.match(word):
            is_dropped = _LONG.get(word, word) in taken
        if not is_dropped:
            kept.append(word)
    return tuple(kept)


def arms_of_builds(arms: Sequence[EngineArm], builds: Mapping[str, str]) -> tuple[EngineArm, ...]:
    """Each arm under each build; the builds' names, such as `build=0a1b2c3`, alone where the arms have no flags.

    builds: name -> program.
    """
    is_bare = len(arms) == 1 and not arms[0].words and not arms[0].environment
    return tuple(
        replace(arm, name=build if is_bare else f"{arm.name} {build}", binary=binary)
        for arm in arms
        for build, binary in builds.items()
    )
