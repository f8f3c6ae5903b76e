"""docs/commands.md holds the help that the commands give today."""

from __future__ import annotations

import pytest

from docs.write_commands import reference
from tests.support import ROOT


def test_the_reference_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")  # a wide terminal changes nothing
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == reference(), "make docs writes it anew"
