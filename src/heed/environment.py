"""Installed versions, and the implementation of attention in use."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def info() -> dict[str, str]:
    """Return the versions in use, and the implementation of attention with the reason for it.

    A missing package is part of the answer, not an error: users call this to find the problem.

    Returns:
        A dictionary of strings, in reading order: `heed`, `python`, `platform`, `keras`, `tensorflow`, `torch`,
        `jax`, `backend` (the backend that Keras uses), `implementation` (`"portable"`, `"native"`, or `"none"` if heed
        cannot run), `reason` (why this one), `instruction_set` (of the native kernels: `"amx"`, `"avx512_bf16"`,
        `"avx512"`, `"avx2"`, `"neon"`, `"baseline"` or `"none"`), `block_sizes` (of these kernels; they depend on the
        instruction set alone), `caches` (of the first processor) and `acceleration` (`"ready"`, or what
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
        "block_sizes": "none",
        "caches": describe_caches(),
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
    answer["block_sizes"] = _describe_block_sizes(backends.current().block_sizes())
    from heed.acceleration import changes

    found = changes()
    answer["acceleration"] = f"not possible: {'; '.join(found)}" if found else "ready"
    return answer


def describe_caches(folder: Path = _CACHES) -> str:
    """Return the caches of data of the first processor, as Linux lists them in `folder`, or "unknown".

    Example:
        "L1 32 KiB, L2 1 MiB, L3 32 MiB"
    """
    found = []
    for index in sorted(folder.glob("index*")):
        with contextlib.suppress(OSError, ValueError):
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
            kib = int(size.removesuffix("K"))
            if kind != "Instruction":
                found.append(f"L{level} {kib} KiB" if kib % 1024 else f"L{level} {kib // 1024} MiB")
    return ", ".join(found) or "unknown"


def _describe_block_sizes(sizes: dict[str, int]) -> str:
    if not sizes:
        return "none"
    return (
        "{queries} queries and {keys} keys at a time; products sum {rows} x {columns} numbers in registers, "
        "up to {terms} terms in one go"
    ).format_map(sizes)


def _version(name: str) -> str:
    """Return the version of the distribution that provides package `name`, or "not installed"."""
    for distribution in _providers(name):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{importlib.metadata.version(distribution)} ({distribution})"
    return "not installed"


def _providers(name: str) -> Iterator[str]:
    """Yield the distributions that may provide a package; others (tf-nightly), found by their metadata, come last."""
    yield from (name, f"{name}-cpu")
    if importlib.util.find_spec(name) is not None:
        everything = importlib.metadata.packages_distributions()  # takes 0.1 s
        yield from everything.get(name, [])
