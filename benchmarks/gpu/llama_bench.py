"""What llama.cpp gives on the same file in the same run: a llama-bench, CUDA build, that `--llama-bench` names."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from executor.model import Model

FFN_ON_HOST = ("-ot", "ffn_(gate|up|down).*=CPU")
EXPERTS_ON_HOST = ("-ncmoe", "99")
_SAME_FOR_ALL = (
    "-ngl",
    "99",
    "-fa",
    "1",
    "-lm",
    "none",
    "-r",
    "3",
    "-o",
    "jsonl",
)  # without mmap, host weights are pinned
_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class LlamaBench:
    """`program` None: there is none, and no figure of a peer is told."""

    program: Path | None = None
    known: dict[tuple[str, ...], dict[int, float]] = field(default_factory=dict)
    """What was measured already, by digest of the file and flags."""

    def prefill(self, model: Model, n_prompt: int, ubatches: Iterable[int], flags: Sequence[str]) -> dict[int, float]:
        """Tokens a second by ubatch; empty without a program. RuntimeError where it fails."""
        sizes = ",".join(map(str, ubatches))
        return self._measured(model, "n_ubatch", ["-p", str(n_prompt), "-n", "0", "-b", "8192", "-ub", sizes, *flags])

    def decode(self, model: Model, n_gen: int, flags: Sequence[str]) -> float | None:
        """Generated tokens a second; None without a program. RuntimeError where it fails."""
        return self._measured(model, "n_gen", ["-p", "0", "-n", str(n_gen), *flags]).get(n_gen)

    def _measured(self, model: Model, key: str, flags: Sequence[str]) -> dict[int, float]:
        asked = (model.source.digest(), *flags)
        if self.program is not None and asked not in self.known:
            command = [str(self.program), "-m", model.origin, *flags, *_SAME_FOR_ALL]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
            if done.returncode:
                raise RuntimeError(f"{self.program} exited with {done.returncode}: {done.stderr[-500:]}")
            rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            self.known[asked] = {row[key]: row["avg_ts"] for row in rows}
        return self.known.get(asked, {})


def ratio(speed: float, of_peer: float | None) -> float | None:
    """How many times as fast as a peer; None where the peer was not measured."""
    return None if of_peer is None else speed / of_peer
