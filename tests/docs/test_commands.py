"""docs/commands.md holds the help that the commands give today."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT


def test_the_reference_is_up_to_date(tmp_path: Path) -> None:
    """In a process of its own: click keeps a command's help option as the first caller asked for it."""
    written = tmp_path / "commands.md"
    wide = os.environ | {"COLUMNS": "240"}  # a wide terminal changes nothing
    subprocess.run([sys.executable, "-m", "docs.write_commands", written], cwd=ROOT, env=wide, check=True)
    assert written.read_text(encoding="utf-8") == (ROOT / "docs" / "commands.md").read_text(encoding="utf-8"), (
        "make docs writes it anew"
    )
