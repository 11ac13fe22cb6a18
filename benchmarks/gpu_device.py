"""Functions of tensors with their gradients on the default device of PyTorch, JAX or, on CPUs, TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

TITLE = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}[keras.config.backend()]


def has_gpu() -> bool:
    """Return whether Keras' backend computes on a GPU."""
    if keras.config.backend() == "torch":
        import torch

        return torch.cuda.is_available()
    import jax

    return jax.default_backend() == "gpu"


def to_device(x: Any, dtype: str | None = None) -> Any:
    """Return the array as a tensor of the default device."""
    if keras.config.backend() == "jax":  # which compiles a program for each shape that Keras casts
        import jax.numpy as jnp

        x = np.asarray(x)
        return jnp.asarray(x if dtype is None else x.astype(jnp.dtype(dtype)))
    return keras.ops.convert_to_tensor(x, dtype=dtype)


def to_host(x: Any) -> np.ndarray:
    """Return the tensor as an array of NumPy in float32."""
    if keras.config.backend() == "torch":
        return x.detach().float().cpu().numpy()
    return np.asarray(x).astype("float32")


def make_step(
    function: Callable[..., Any],
    tensors: Sequence[Any],
    upstream: Any | None = None,
    extra: Sequence[Any] = (),
    weights: Sequence[Any] = (),
) -> Callable[[], Sequence[Any]]:
    """Return a call of a function, compiled on JAX and TensorFlow, that returns when its results are there.

    Args:
        function: of the tensors, which get gradients, and then the extra ones, which get none.
        upstream: the gradient of the output; None for the forward pass alone.
        weights: variables of TensorFlow that get gradients, too.
    """
    if keras.config.backend() == "torch":
        return _make_torch_step(function, tensors, upstream, extra)
    if keras.config.backend() == "tensorflow":
        return _make_tensorflow_step(function, tensors, upstream, extra, weights)
    import jax

    program = _make_jax_program(function)
    return lambda: jax.block_until_ready(program(tensors, upstream, extra))


def _make_jax_program(function: Callable[..., Any]) -> Any:
    import jax

    # All tensors are arguments: XLA would fold those that it knows into the program.
    def run(tensors: Sequence[Any], upstream: Any, extra: Sequence[Any]) -> tuple[Any, ...]:
        if upstream is None:
            return (function(*tensors, *extra),)
        output, pull = jax.vjp(lambda *x: function(*x, *extra), *tensors)
        return output, *pull(upstream)

    return jax.jit(run)


def _make_torch_step(
    function: Callable[..., Any], tensors: Sequence[Any], upstream: Any, extra: Sequence[Any]
) -> Callable[[], tuple[Any, ...]]:
    import torch

    wait = torch.cuda.synchronize if has_gpu() else lambda: None
    leaves = [x.detach().requires_grad_(upstream is not None) for x in tensors]

    def step(*, waits: bool = True) -> tuple[Any, ...]:
        with torch.set_grad_enabled(upstream is not None):
            output = function(*leaves, *extra)
        found = () if upstream is None else torch.autograd.grad(output, leaves, upstream)
        if waits:
            wait()
        return (output.detach(), *found)

    return step


def _make_tensorflow_step(
    function: Callable[..., Any],
    tensors: Sequence[Any],
    upstream: Any,
    extra: Sequence[Any],
    weights: Sequence[Any],
) -> Callable[[], list[Any]]:
    import tensorflow as tf

    def run(*inputs: Any) -> list[Any]:
        if upstream is None:
            return [function(*inputs)]
        watched = inputs[: len(tensors)]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            output = function(*inputs)
        return [output, *tape.gradient(output, [*watched, *weights], upstream)]

    inputs = [*tensors, *extra]
    # A `tf.function` would take an eighth of a millisecond to find its graph.
    graph = tf.function(run, autograph=False).get_concrete_function(*inputs)
    return lambda: graph(*inputs)


# A while in which the host can launch a whole step.
_SLEEP_CYCLES = 10**8
_TRIES = 5


def time_parts(step: Callable[..., Any]) -> tuple[float, float] | None:
    """Return the seconds in Python until all of a step of PyTorch is launched, and those on the GPU alone, if any."""
    if not has_gpu():
        return None
    import torch

    in_python, on_gpu = [], []
    for _ in range(_TRIES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start = time.perf_counter()
        step(waits=False)
        in_python.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        torch.cuda._sleep(_SLEEP_CYCLES)  # until then the GPU does not wait for the host
        begin.record()
        step(waits=False)
        end.record()
        torch.cuda.synchronize()
        on_gpu.append(begin.elapsed_time(end) / 1e3)
    return min(in_python), min(on_gpu)


def measure_peak(
    function: Callable[..., Any], tensors: Sequence[Any], upstream: Any | None = None
) -> int | None:
    """Return the most bytes that such a step takes beyond its tensors and results; None where nothing counts them."""
    if keras.config.backend() == "torch":
        step = make_step(function, tensors, upstream)
        results = step()  # compiles kernels, of which some are tried on memory of their own
        if not has_gpu():
            return None
        import torch

        size = sum(x.numel() * x.element_size() for x in results)
        del results
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before - size
    compiled = _make_jax_program(function).lower(list(tensors), upstream, ()).compile()
    return compiled.memory_analysis().temp_size_in_bytes
