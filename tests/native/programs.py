"""Runs programs that tests build."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_program(command: list[str], environment: Mapping[str, str]) -> str:
    """Runs a command from the root of the repository; returns what it printed. Fails if the command does."""
    child = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    printed = f"exit status {child.returncode}\n{child.stdout[-4000:]}\n{child.stderr[:6000]}"
    assert child.returncode == 0, printed
    return child.stdout
