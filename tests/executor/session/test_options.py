"""A pass larger than its session is refused: buffers are reserved once, and nothing else would stop it."""

from __future__ import annotations

import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.models.load import load_model
from executor.passes import PassJob
from executor.placement.place import place
from executor.session import Session, SessionOptions


@pytest.mark.parametrize(
    ("n_prompt", "n_gen", "n_ubatch", "what"),
    [(65, 0, 16, "positions"), (60, 6, 16, "positions"), (40, 0, 40, "tokens in a ubatch"), (64, 0, 8, "ubatches")],
)
def test_a_pass_that_is_too_large(n_prompt: int, n_gen: int, n_ubatch: int, what: str) -> None:
    model = load_model("tiny-dense")
    options = SessionOptions(DeviceOptions("sim"), max_positions=64, max_ubatch=32, max_ubatches=6, dtype=torch.float32)
    session = Session(model, place(model.tensors), ["off"], options)
    try:
        session.run_pass(PassJob(0, "off", 60, 2, 32, 0, 0))
        with pytest.raises(ValueError, match=f"{what} does not fit"):
            session.run_pass(PassJob(0, "off", n_prompt, n_gen, n_ubatch, 0, 0))
    finally:
        session.close()
