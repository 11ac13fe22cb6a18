"""heed on a GPU against stock Keras on the same backend: `python -m benchmarks gpu`.

Without a GPU it measures tiny sizes on the CPU, without bars: a trial of the script.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

from benchmarks.comparison import Comparison, Measurement, name_versions

# JAX would take three quarters of the memory, of which PyTorch's processes need some.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _look_around() -> dict[str, Any]:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return {"gpu": "no GPU: tiny sizes on the CPU"}
    name, _, driver = answer.partition(", ")
    return {"gpu": f"{name} (driver {driver})"}


def _describe(about: dict[str, Any]) -> str:
    return (
        f"{about['day']}, {about['gpu']}; {name_versions(about)}. bfloat16; medians of rounds in turn. Ratios are "
        f"stock Keras' time / heed's. `{about['command']}`"
    )


SUITE = Comparison(
    "gpu",
    "heed on a GPU against stock Keras on PyTorch and JAX",
    {
        f"{backend}-{what}": Measurement(f"gpu_{what}", "measure", backend)
        for what in ("calls", "models")
        for backend in ("torch", "jax")
    },
    rounds=9,
    section=lambda _: "gpu",
    describe=_describe,
    look_around=_look_around,
)
