"""Installed versions, and the implementation of attention in use."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Iterator


def info() -> dict[str, str]:
    """Returns the versions in use, and the implementation of attention with the reason for it.

    A missing package is part of the answer, not an error: users call this to find the problem.

    Returns:
        A dictionary of strings, in reading order: `heed`, `python`, `platform`, `keras`, `tensorflow`, `torch`,
        `jax`, `backend` (the backend that Keras uses), `implementation` (`"portable"`, `"native"`, or `"none"` if heed
        cannot run), `reason` (why this one), `instruction_set` (of the native kernels: `"amx"`, `"avx512_bf16"`,
        `"avx512"`, `"avx2"`, `"neon"`, `"baseline"` or `"none"`) and `acceleration` (`"ready"`, or what
        `heed.accelerate` expected of this Keras and what it found).

    Example:
        >>> import heed
        >>> heed.info()["backend"]
        'tensorflow'
    """
    from heed import __version__

    answer = {
        "heed": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "keras": _version("keras"),
        "tensorflow": _version("tensorflow"),
        "torch": _version("torch"),
        "jax": _version("jax"),
        "backend": "unknown",
        "implementation": "none",
        "reason": "",
        "instruction_set": "none",
        "acceleration": "not possible",
    }
    with contextlib.suppress(ImportError):  # reported below
        import keras

        answer["backend"] = keras.config.backend()
    try:
        from heed.ops import backends, dispatch

        backends.check()
        chosen = dispatch.explain()
    except (ImportError, RuntimeError) as error:
        answer["reason"] = str(error)
        return answer
    answer["implementation"] = chosen.implementation
    answer["reason"] = "; ".join(chosen.reasons)
    answer["instruction_set"] = backends.current().instruction_set()
    from heed.acceleration import changes

    found = changes()
    answer["acceleration"] = f"not possible: {'; '.join(found)}" if found else "ready"
    return answer


def _version(name: str) -> str:
    """The version of the distribution that provides package `name`, or "not installed"."""
    for distribution in _providers(name):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{importlib.metadata.version(distribution)} ({distribution})"
    return "not installed"


def _providers(name: str) -> Iterator[str]:
    """The distributions that may provide a package; others (tf-nightly), found by their metadata, come last."""
    yield from (name, f"{name}-cpu")
    everything = importlib.metadata.packages_distributions()  # takes 0.1 s
    yield from everything.get(name, [])
