"""The functions of `tests.framework.tf` for JAX, which has no tape: here a tape records the primitives that run.

A recording trace runs each primitive at once and notes it, so that code under test sees numbers, as it does on other
backends. `gradient` replays the notes as a function of the sources and differentiates that with `jax.vjp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax._src import core  # JAX has no public way to run code with a trace of one's own

# Tests compare with a reference in float64.
jax.config.update("jax_enable_x64", True)
# Tests compile many small programs, each of which runs once.
jax.config.update("jax_disable_most_optimizations", True)


class _Step(NamedTuple):
    """A primitive that ran."""

    name: str
    function: Callable[..., Any]
    inputs: list[Any]
    outputs: list[Any]


class _Recorder(core.Trace):
    """Runs primitives in the trace outside, and keeps them with all their operands."""

    def __init__(self, outside: Any) -> None:
        super().__init__()
        self.outside, self.steps = outside, []

    def stage_value(self, value: Any) -> Any:
        with core.set_current_trace(self.outside):
            return self.outside.stage_value(value)

    def process_primitive(self, primitive: Any, args: Any, params: Any) -> Any:
        def run(*args: Any) -> Any:
            return primitive.bind(*args, **params)

        with core.set_current_trace(self.outside):
            found = run(*args)
        found = self._note(
            primitive.name, run, args, found if primitive.multiple_results else [found]
        )
        return found if primitive.multiple_results else found[0]

    def process_custom_jvp_call(
        self, primitive: Any, function: Any, jvp: Any, args: Any, **params: Any
    ) -> Any:
        def stage(*args: Any) -> Any:
            trace = core.trace_ctx.trace
            return trace.process_custom_jvp_call(primitive, function, jvp, args, **params)

        return self._note_program(primitive.name, stage, args)

    def process_custom_vjp_call(
        self, primitive: Any, function: Any, forward: Any, backward: Any, args: Any, **params: Any
    ) -> Any:
        def stage(*args: Any) -> Any:
            trace = core.trace_ctx.trace
            return trace.process_custom_vjp_call(
                primitive, function, forward, backward, args, **params
            )

        return self._note_program(primitive.name, stage, args)

    def _note_program(self, name: str, stage: Any, args: Any) -> Any:
        """Notes a call whose functions run only once, as a program that runs any number of times."""
        with core.set_current_trace(self.outside):
            program = jax.make_jaxpr(stage)(*args)
            run = core.jaxpr_as_fun(program)
            found = run(*args)
        return self._note(name, run, args, found)

    def _note(self, name: str, function: Any, args: Any, found: Any) -> list[Any]:
        given = {id(x) for x in args}
        # An array of its own for each result: they are known by identity.
        with core.set_current_trace(self.outside):
            found = [jnp.array(x, copy=True) if id(x) in given else x for x in found]
        self.steps.append(_Step(name, function, list(args), found))
        return found

    def replay(self, sources: Sequence[Any], targets: Sequence[Any], values: Sequence[Any]) -> Any:
        """The targets, from other values of the sources."""
        fixed = {id(x) for x in sources}
        known = {id(x): value for x, value in zip(sources, values, strict=True)}
        for step in self.steps:
            if not any(id(x) in known for x in step.inputs):
                continue
            found = step.function(*(known.get(id(x), x) for x in step.inputs))
            found = found if isinstance(found, (list, tuple)) else [found]
            for x, value in zip(step.outputs, found, strict=True):
                if id(x) not in fixed:
                    known[id(x)] = value
        return [known.get(id(x), x) for x in targets]

    def is_connected(self, source: Any, targets: Sequence[Any]) -> bool:
        """Whether a target depends on the source."""
        reached = {id(source)}
        for step in self.steps:
            if step.name != "stop_gradient" and any(id(x) in reached for x in step.inputs):
                reached.update(map(id, step.outputs))
        return any(id(x) in reached for x in targets)


def _value(x: Any) -> Any:
    return x.value if isinstance(x, keras.Variable) else x


class GradientTape:
    """TensorFlow's, as far as tests of meaning need it."""

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._recorder: Any = None

    def __enter__(self) -> GradientTape:
        self._recorder = _Recorder(core.trace_ctx.trace)
        self._context = core.set_current_trace(self._recorder)
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def watch(self, tensors: Any) -> None:
        """Everything is watched."""

    def jacobian(self, *_: Any, **__: Any) -> None:
        pytest.skip("the jacobian of a tape is about TensorFlow")

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: str = "none",
    ) -> Any:
        targets, wanted = keras.tree.flatten(target), list(map(_value, keras.tree.flatten(sources)))
        incoming = [None] * len(targets)
        if output_gradients is not None:
            incoming = keras.tree.flatten(output_gradients)
        pairs = [
            (x, jnp.ones_like(x) if y is None else jnp.asarray(y, x.dtype))
            for x, y in zip(targets, incoming, strict=True)
            if jnp.issubdtype(x.dtype, jnp.inexact)
        ]
        targets = [x for x, _ in pairs]

        def replay(*values: Any) -> Any:
            return self._recorder.replay(wanted, targets, values)

        found = jax.vjp(replay, *wanted)[1]([y for _, y in pairs])
        if unconnected_gradients == "none":
            found = [
                y if self._recorder.is_connected(x, targets) else None
                for x, y in zip(wanted, found, strict=True)
            ]
        return keras.tree.pack_sequence_as(sources, list(found))


def make(namespace: Any) -> Any:
    """The functions by TensorFlow's names, in a `namespace` that skips tests which need another one."""
    names = "float16 bfloat16 float32 float64 bool int8 uint8 int32 int64 uint32".split()
    dtypes = {name: jnp.dtype(name) for name in names}

    def tensor(x: Any) -> Any:
        x = _value(x)
        return x if isinstance(x, jax.Array) else constant(x)

    def constant(x: Any, dtype: Any = None, shape: Any = None) -> Any:
        if not hasattr(x, "dtype"):
            x = np.array([np.asarray(y) for y in x] if isinstance(x, (list, tuple)) else x)
            plain = {"int64": "int32", "float64": "float32"}
            numbers = x.flat[0].item() if x.size else 0.0
            if dtype is None and type(numbers) in (int, float):
                dtype = plain.get(x.dtype.name)
        made = jnp.asarray(x, dtype)
        return made if shape is None else made.reshape(tuple(shape))

    def repeat(x: Any, repeats: int, axis: int) -> Any:
        return jnp.repeat(tensor(x), repeats, axis)

    # Results convert to NumPy as TensorFlow's do.
    array_type: Any = type(jnp.zeros(()))
    array_type.numpy = lambda self: np.array(self)
    return namespace(
        **dtypes,
        Tensor=jax.Array,
        Variable=lambda x: keras.Variable(np.asarray(x), dtype=np.asarray(x).dtype.name),
        GradientTape=GradientTape,
        constant=constant,
        convert_to_tensor=tensor,
        identity=lambda x: tensor(x) * 1,
        zeros=lambda shape, dtype="float32": jnp.zeros(tuple(shape), dtype),
        ones=lambda shape, dtype="float32": jnp.ones(tuple(shape), dtype),
        fill=lambda shape, x: constant(np.full(tuple(shape), x)),
        eye=lambda n, dtype="float32": jnp.eye(n, dtype=dtype),
        zeros_like=lambda x: jnp.zeros_like(tensor(x)),
        ones_like=lambda x: jnp.ones_like(tensor(x)),
        range=lambda *bounds: jnp.arange(*bounds, dtype="int32"),
        cast=lambda x, dtype: tensor(x).astype(dtype),
        reduce_sum=lambda x, axis=None, keepdims=False: tensor(x).sum(axis, keepdims=keepdims),
        reduce_mean=lambda x, axis=None, keepdims=False: tensor(x).mean(axis, keepdims=keepdims),
        reduce_any=lambda x, axis=None, keepdims=False: tensor(x).any(axis, keepdims=keepdims),
        reduce_logsumexp=lambda x, axis=None: jax.nn.logsumexp(tensor(x), axis),
        einsum=jnp.einsum,
        matmul=lambda x, y, transpose_b=False: x @ (jnp.swapaxes(y, -1, -2) if transpose_b else y),
        tanh=jnp.tanh,
        sin=jnp.sin,
        square=jnp.square,
        norm=jnp.linalg.norm,
        multiply=lambda x, y: tensor(x) * y,
        add_n=sum,
        reshape=lambda x, shape: tensor(x).reshape(tuple(shape)),
        transpose=lambda x, axes: tensor(x).transpose(tuple(axes)),
        repeat=repeat,
        concat=lambda parts, axis: jnp.concatenate([tensor(x) for x in parts], axis),
        where=lambda condition, x, y: jnp.where(tensor(condition), tensor(x), tensor(y)),
        stop_gradient=jax.lax.stop_gradient,
        nn=namespace(softmax=jax.nn.softmax),
        math=namespace(log=jnp.log, is_finite=jnp.isfinite),
        linalg=namespace(matvec=lambda x, y: x @ _value(y)),
        nest=namespace(flatten=keras.tree.flatten, map_structure=keras.tree.map_structure),
        size=lambda x: tensor(x).size,
        shape=lambda x: tuple(x.shape),
        gather=lambda x, indices, axis: jnp.take(x, jnp.asarray(indices), axis),
        one_hot=lambda x, n: jax.nn.one_hot(tensor(x), n, dtype="float32"),
        errors=namespace(InvalidArgumentError=ValueError, OpError=RuntimeError),
    )
