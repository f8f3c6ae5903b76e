"""Random blocks: finite, centred, of the wanted spread, the same every time."""

from __future__ import annotations

import hashlib

import pytest
import torch

from executor.quants import QUANTS, dequantise, fill_random, row_bytes

N_COLS = 4096


def filled(quant: str, std: float, seed: int, n_rows: int = 64) -> torch.Tensor:
    out = torch.zeros(n_rows * row_bytes(quant, N_COLS), dtype=torch.uint8)
    fill_random(out, quant, std, seed)
    return out


def weights(quant: str, std: float, seed: int, n_rows: int = 64) -> torch.Tensor:
    return dequantise(filled(quant, std, seed, n_rows).view(n_rows, -1), quant, torch.float32)


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("std", [0.003, 0.02, 1.0])
def test_spread_mean_and_finiteness(quant: str, std: float) -> None:
    values = weights(quant, std, seed=5)
    assert values.isfinite().all()
    assert values.std().item() == pytest.approx(std, rel=0.03)
    assert abs(values.mean().item()) < 0.02 * std


@pytest.mark.parametrize("quant", QUANTS)
def test_seed_decides_all_bytes(quant: str) -> None:
    assert torch.equal(filled(quant, 0.02, 1), filled(quant, 0.02, 1))
    assert not torch.equal(filled(quant, 0.02, 1), filled(quant, 0.02, 2))


def test_bytes_are_the_same_on_every_machine_and_version() -> None:
    digest = hashlib.sha256(filled("Q4_0", 0.02, 1).numpy().tobytes()).hexdigest()
    assert digest[:16] == "43fb0b007558e858"


def test_no_two_rows_are_equal_beyond_a_tile() -> None:
    n_rows = 1200  # 4.9M weights: the tile of 131,071 blocks begins anew inside
    values = weights("Q4_0", 0.02, seed=6, n_rows=n_rows)
    assert len(torch.unique(values, dim=0)) == n_rows


def test_smaller_than_a_tile_and_refused_when_not_whole_blocks() -> None:
    one = torch.zeros(18, dtype=torch.uint8)
    fill_random(one, "Q4_0", 0.02, 3)
    assert one.any()
    with pytest.raises(ValueError, match="whole Q4_0 blocks"):
        fill_random(torch.zeros(19, dtype=torch.uint8), "Q4_0", 0.02, 3)
