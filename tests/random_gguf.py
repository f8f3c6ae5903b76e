"""GGUF files of random F32 weights for any architecture, and what every architecture's file is held to.

Keys and tensors are written out by each test, as a converter would write them: nothing here asks hprof what a file
of an architecture holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest

from executor.errors import HprofError
from executor.models.load import load_model
from executor.policies.base import PolicyOptions
from executor.reference import forward
from tests.executor.engine_runs import open_session, run_pass
from tests.llama_cpp import llama_logits, relative_errors
from tests.support import one_sentence

N_VOCAB: Final = 96
_BANK_BYTES: Final = 1 << 18  # room for some of the experts
# Vectors that do not lie around 0; a delta net with an `ssm_a` above 0 remembers ever more.
_MIDDLES: Final = {"norm.weight": 1.0, ".scale": 1.0, "short.weight": 1.5, "long.weight": 2.5, "ssm_a": -1.0}
Shapes = dict[str, tuple[int, ...]]


def model_tensors(hidden: int, blocks: Sequence[Shapes]) -> Shapes:
    """Embedding, output and the blocks' tensors, whose names lack `blk.N.`."""
    shapes: Shapes = {
        "token_embd.weight": (N_VOCAB, hidden),
        "output_norm.weight": (hidden,),
        "output.weight": (N_VOCAB, hidden),
    }
    return shapes | {f"blk.{i}.{name}": dims for i, block in enumerate(blocks) for name, dims in block.items()}


def ffn_tensors(hidden: int, n_ff: int, suffix: str = "", stack: tuple[int, ...] = ()) -> Shapes:
    """Gate, up and down of an FFN; of experts with `suffix` `_exps` and their number as `stack`."""
    return {
        f"ffn_gate{suffix}.weight": (*stack, n_ff, hidden),
        f"ffn_up{suffix}.weight": (*stack, n_ff, hidden),
        f"ffn_down{suffix}.weight": (*stack, hidden, n_ff),
    }


def write_random_gguf(path: Path, architecture: str, keys: Mapping[str, Any], tensors: Shapes) -> Path:
    """Write the file. Matrices keep the scale of what they multiply, norms lie around 1, other vectors around 0."""
    writer, rng = gguf.GGUFWriter(path, architecture), np.random.default_rng(1)
    kinds = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in {"vocab_size": N_VOCAB, "context_length": 256, **keys}.items():
        kinds[type(value)](f"{architecture}.{key}", value)
    writer.add_tokenizer_model("no_vocab")
    for name, dims in tensors.items():
        if len(dims) > 1:
            values = rng.standard_normal(dims, dtype=np.float32) / np.float32(dims[-1] ** 0.5)
        else:
            middle = next((at for end, at in _MIDDLES.items() if name.endswith(end)), 0.0)
            values = rng.uniform(middle - 0.5, middle + 0.5, dims).astype(np.float32)
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_tokens(n: int) -> list[int]:
    """The same `n` tokens each time."""
    tokens: list[int] = np.random.default_rng(7).integers(0, N_VOCAB, n).tolist()
    return tokens


def check_against_llama_cpp(path: Path, n_tokens: int = 32, last: int = 0) -> None:
    """The plain forward's logits are llama.cpp's, but for the float16 of its KV cache; `last`: of so many alone.

    Where there are experts, two tokens may be off: that rounding swaps two that score nearly the same.
    """
    tokens = random_tokens(n_tokens)
    model = load_model(str(path))
    found = forward(model, tokens).numpy()
    errors = relative_errors(found, llama_logits(path, tokens, N_VOCAB))[-last:]
    assert np.median(errors) < 2e-3
    assert (errors > 8e-3).sum() <= (2 if model.has_experts else 0)


def check_refused(path: Path, words: str) -> None:
    """Loading the file is refused in one sentence, with words of it as a pattern."""
    with pytest.raises(HprofError, match=words) as caught:
        load_model(str(path))
    one_sentence(caught.value)


def check_in_engine(path: Path, arms: Sequence[str]) -> None:
    """Every arm on the cpu device gives the plain forward's logits, over several ubatches and generated tokens."""
    prompt = random_tokens(40)
    policy = PolicyOptions(cache_bytes=_BANK_BYTES)
    with open_session(str(path), arms, prompt=prompt, max_positions=64, policy=policy) as session:
        for arm in arms:
            result, logits = run_pass(session, arm, len(prompt), n_gen=4, n_ubatch=32)
            assert logits is not None
            want = forward(session.model, [*prompt, *result.tokens[:-1]])[len(prompt) - 1 :]
            assert float(((logits - want).norm(dim=-1) / want.norm(dim=-1)).max()) < 1e-4, arm
