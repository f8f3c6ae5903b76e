"""The points of a run's grid."""

from __future__ import annotations

from profiler.planning.request import GridPoint, grid


def test_the_grid_is_every_combination() -> None:
    cells = grid([512, 1024], [0, 16], [64, 256], [0])
    assert len(cells) == len(set(cells)) == 8
    assert cells[0] == GridPoint(512, 0, 64, 0)
    assert {cell.n_ubatch for cell in cells[:4]} == {64}


def test_what_a_cell_needs() -> None:
    cell = GridPoint(n_prompt=100, n_gen=5, n_ubatch=32, n_depth=7)
    assert cell.n_positions == 112
    assert cell.n_ubatches == 4 + 5
