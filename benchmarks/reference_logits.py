"""How close a forward pass comes to llama.cpp's logits: relative L2 error per position, and equal likeliest tokens.

    python -m tests.gguf_models .cache/reference       # writes small models, with llama.cpp's logits beside them
    python benchmarks/reference_logits.py .cache/reference --device cuda
    python benchmarks/reference_logits.py FOLDER --model smollm2-135m-instruct-q4_1=PATH.gguf

For each NAME.logits.npz (`tokens`, `logits`) in the folder, runs NAME.gguf beside it, or the file that --model names.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from executor.models.load import load_model
from executor.reference import forward

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Closeness:
    """Errors over positions, and how many of them agree on the likeliest token."""

    median: float
    largest: float
    agreeing: int
    positions: int


def closeness(model: Path, logits: Path, dtype: torch.dtype, device: str = "cpu") -> Closeness:
    """Run `model` over the tokens in `logits` (npz) and compare."""
    with np.load(logits) as archive:
        tokens, want = archive["tokens"].tolist(), archive["logits"]
    got = forward(load_model(str(model)), tokens, dtype, device=device).cpu().numpy()
    errors = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    agreeing = int((got.argmax(1) == want.argmax(1)).sum())
    return Closeness(float(np.median(errors)), float(errors.max()), agreeing, len(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    named = {name: Path(path) for name, _, path in (text.partition("=") for text in arguments.model)}
    print("| file | dtype | median | largest | same likeliest token |\n|---|---|---|---|---|")
    for logits in sorted(arguments.folder.glob("*.logits.npz")):
        name = logits.name.removesuffix(".logits.npz")
        model = named.get(name, logits.with_name(f"{name}.gguf"))
        if not model.is_file():
            print(f"no {model}: left out", file=sys.stderr)
            continue
        for label, dtype in _DTYPES.items():
            c = closeness(model, logits, dtype, arguments.device)
            print(f"| {name} | {label} | {c.median:.4f} | {c.largest:.4f} | {c.agreeing}/{c.positions} |", flush=True)


if __name__ == "__main__":
    main()
