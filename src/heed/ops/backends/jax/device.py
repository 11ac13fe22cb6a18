"""The device on which JAX computes."""

from __future__ import annotations

from typing import Any

import jax

from heed.ops.backends import CPU


def device_of(x: Any = None) -> str:
    """Return where an array is. Traced arrays are nowhere yet: XLA compiles for the default device."""
    kind = jax.default_backend()
    return CPU if kind == "cpu" else kind.upper()
