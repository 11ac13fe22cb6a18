"""All faults, and the library that is in use."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tests.planted_faults import (
    faults_above,
    faults_in_backends,
    faults_in_kernels,
    faults_in_layers,
    faults_in_ops,
)

FAULTS = (
    *faults_in_ops.FAULTS,
    *faults_in_backends.FAULTS,
    *faults_in_kernels.FAULTS,
    *faults_in_layers.FAULTS,
    *faults_above.FAULTS,
)


def library() -> Path | None:
    """Return the folder of the native library of the heed that is installed, or None."""
    spec = find_spec("heed")
    places = [] if spec is None else spec.submodule_search_locations or []
    folders = (Path(place) / "_lib" for place in places)
    return next((folder for folder in folders if (folder / "libheed_core.so").exists()), None)
