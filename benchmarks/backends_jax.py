"""Causal attention on JAX against `jax.nn.dot_product_attention`, both jitted: times as ratios, and peak memory.

    python -m benchmarks.backends_jax [--rounds 15] [--length 4096]

Each round times one call of both, alternating; the ratio is that of the lower quartiles.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

_HEADS, _WIDTH = 8, 64
_MEMORY_LENGTH = 32768


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="calls of each side (default 15)")
    parser.add_argument("--length", type=int, default=4096, help="T and S (default 4096)")
    parser.add_argument("--memory", choices=("none", "fwd", "fwd+bwd"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    os.environ["KERAS_BACKEND"] = "jax"
    if options.memory:
        print(_peak(options.memory, options.length))
        return
    import heed

    print(f"heed on JAX: {heed.explain_dispatch(*_operands(16), is_causal=True)}")
    x = _operands(options.length)
    for name in ("fwd", "fwd+bwd"):
        ratio, ours, theirs = _compare(
            _program(name, _heed), _program(name, _jax), x, options.rounds
        )
        shape = (1, _HEADS, options.length, _WIDTH)
        print(f"causal {name} {shape}: {ours:.1f} ms, jax.nn {theirs:.1f} ms, ratio {ratio:.2f}")
    base = _in_child("none", 16)
    for name in ("fwd", "fwd+bwd"):
        peak = _in_child(name, _MEMORY_LENGTH) - base
        print(f"causal {name} at T={_MEMORY_LENGTH}: {peak / 2**20:.0f} MiB above an idle process")


def _operands(length: int) -> list[Any]:
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (1, length, _HEADS, _WIDTH), jnp.float32) for key in keys]


def _heed(query: Any, key: Any, value: Any) -> Any:
    from heed.ops import dot_product_attention

    return dot_product_attention(query, key, value, is_causal=True)


def _jax(query: Any, key: Any, value: Any) -> Any:
    import jax

    return jax.nn.dot_product_attention(query, key, value, is_causal=True)


def _program(name: str, attend: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    if name == "fwd":
        return jax.jit(attend)
    return jax.jit(jax.grad(lambda *x: attend(*x).sum(), (0, 1, 2)))


def _seconds(program: Callable[..., Any], x: Sequence[Any]) -> float:
    import jax

    start = time.perf_counter()
    jax.block_until_ready(program(*x))
    return time.perf_counter() - start


def _compare(ours: Any, theirs: Any, x: Sequence[Any], rounds: int) -> tuple[float, float, float]:
    """The ratio, and milliseconds of both."""
    for program in (ours, theirs):
        _seconds(program, x)  # compiles
    times = [(_seconds(ours, x), _seconds(theirs, x)) for _ in range(rounds)]
    first, second = (
        statistics.quantiles(column, n=4)[0] * 1e3 for column in zip(*times, strict=True)
    )
    return second / first, first, second


def _in_child(name: str, length: int) -> int:
    command = [
        sys.executable,
        "-m",
        "benchmarks.backends_jax",
        "--memory",
        name,
        "--length",
        str(length),
    ]
    return int(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    )


def _peak(name: str, length: int) -> int:
    """The peak memory of this process in bytes after one call."""
    x = _operands(length)
    program = _program("fwd" if name == "none" else name, _heed)
    _seconds(program, x)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
