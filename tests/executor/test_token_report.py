"""What a decoded token reports: reports stand in a row in one slab, whatever the number of layers and experts."""

from __future__ import annotations

import pytest
import torch

from executor.model import AttentionShape, DenseFfn, Ffn, LayerShape, ModelShape, MoeFfn, RopeShape
from executor.token_report import report_bytes, token_report

_ATTENTION = AttentionShape(2, 1, 8, RopeShape(10000.0, 8))


def _model(n_layers: int, ffn: Ffn) -> ModelShape:
    return ModelShape("m", "llama", 32, 16, (LayerShape(_ATTENTION, ffn),) * n_layers, 1e-5)


@pytest.mark.parametrize(("n_layers", "n_experts"), [(1, 0), (2, 0), (3, 5), (7, 3), (4, 8)])
def test_each_report_of_a_slab_holds_its_own(n_layers: int, n_experts: int) -> None:
    model = _model(n_layers, MoeFfn(n_experts, 1, 8) if n_experts else DenseFfn(8))
    slab = torch.zeros(3 * report_bytes(model), dtype=torch.uint8).view(3, -1)
    for i, raw in enumerate(slab):
        report = token_report(model, raw)
        report.token.fill_(i + 1)
        report.stamps.copy_(torch.arange(len(report.stamps)) + 1000 * i)
        report.flags.fill_(i + 1)
    for i, raw in enumerate(slab):
        report = token_report(model, raw)
        assert report.token.tolist() == [i + 1]
        assert report.stamps.tolist() == [1000 * i + n for n in range(len(report.stamps))]
        assert report.flags.shape == (n_layers, max(n_experts, 1))
        assert report.flags.unique().tolist() == [i + 1]
