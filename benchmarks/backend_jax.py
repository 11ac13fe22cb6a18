"""JAX: causal `heed.ops` against `jax.nn.dot_product_attention`, both jitted, and heed's peak memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.results import Row
from benchmarks.turns import ratio
from heed.ops import dot_product_attention

_HEADS, _WIDTH = 8, 64
_LENGTH, _LONG = 4096, 32768
_PASSES = ("fwd", "fwd+bwd")


def _operands(length: int) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (1, length, _HEADS, _WIDTH), jnp.float32) for key in keys]


def _program(name: str, attend: Callable[..., Any]) -> Callable[..., Any]:
    def causal(*x: jax.Array) -> jax.Array:
        return attend(*x, is_causal=True)

    if name == "fwd":
        return jax.jit(causal)
    return jax.jit(jax.grad(lambda *x: causal(*x).sum(), (0, 1, 2)))


def _run(program: Callable[..., Any], x: list[jax.Array]) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(program(*x))


def measure(rounds: int) -> Iterator[Row]:
    """Yield the rows of times."""
    x = _operands(_LENGTH)
    for name in _PASSES:
        ours = _run(_program(name, dot_product_attention), x)
        theirs = _run(_program(name, jax.nn.dot_product_attention), x)
        shape = (1, _HEADS, _LENGTH, _WIDTH)
        yield ratio(f"JAX: causal {name} {shape}", ours, theirs, 3.0, rounds)


def measure_memory(rounds: int) -> Iterator[Row]:
    """Yield the peak of a process that runs heed once, above that of one that runs a short attention.

    Inputs and their gradients do not count, as in all figures of memory.
    """
    base = _in_child("fwd", 64)
    for name in _PASSES:
        given = (3 if name == "fwd" else 6) * 4 * _HEADS * _WIDTH * _LONG
        peak = _in_child(name, _LONG) - base - given
        title = f"JAX: memory of causal {name}, T={_LONG}"
        yield Row(title, peak / 2**20, 400.0, at_most=True, unit="MiB")


def _in_child(name: str, length: int) -> int:
    command = [sys.executable, "-m", "benchmarks.backend_jax", json.dumps([name, length])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def _peak(name: str, length: int) -> int:
    """Return the peak memory of this process in bytes, after a call of the program."""
    _run(_program(name, dot_product_attention), _operands(length))()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    print(_peak(*json.loads(sys.argv[1])))
