"""Small file systems in memory, for tries on disks that are full or read-only; mounting them needs root."""

from __future__ import annotations

import subprocess
from pathlib import Path


def mounted(path: Path, size: int) -> bool:
    """Mount a file system of so many bytes there; False where that is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def unmount(path: Path) -> None:
    """Undo `mounted`."""
    subprocess.run(["umount", str(path)], check=True)


def remount_read_only(path: Path) -> None:
    """From now on nothing is written there."""
    subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
