"""Saved models and trained runs move between the backends of Keras."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(backend: str, *arguments: object) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    result = subprocess.run(
        [sys.executable, "-m", "tests.across_backends", *map(str, arguments)],
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    run("tensorflow", "write", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_what_tensorflow_has_written_gives_the_same_elsewhere(backend: str, written: Path) -> None:
    """Outputs, tokens and scores of each kind of model, and the words of a trained run."""
    run(backend, "compare", written)
