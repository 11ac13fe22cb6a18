"""cuDNN's attention with heed's meaning of empty rows and nonfinite numbers, differentiable any number of times.

cuDNN multiplies hidden values by 0, which leaves NaN. So it computes with finite substitutes, and NaN is then written
into each row that sees a nonfinite key or value, or holds a nonfinite query. The first derivatives are cuDNN's, higher
ones those of the portable form. JAX has no forward mode through cuDNN.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from heed.ops.backends.jax.portable.implementation import Portable, second_derivatives
from heed.ops.spec import AttentionSpec, Tensors


def _flatten(spec: AttentionSpec) -> tuple[Any, AttentionSpec]:
    """Return the tensors of a spec, and what is fixed in a compiled call."""
    score = spec.score.with_operands(())
    return (spec.mask, spec.score.operands), dataclasses.replace(spec, mask=None, score=score)


def _unflatten(bare: AttentionSpec, tensors: Any) -> AttentionSpec:
    mask, operands = tensors
    return dataclasses.replace(bare, mask=mask, score=bare.score.with_operands(operands))


jax.tree_util.register_pytree_node(AttentionSpec, _flatten, _unflatten)


@jax.jit
def run(spec: AttentionSpec, tensors: Tensors) -> jax.Array:
    """Return the output in the layout of the spec."""
    return _run(spec, tensors)[0]


class _Ranges(NamedTuple):
    """Consecutive positions of the other axis: from `first` to `last`, none if that is smaller. (B or 1, 1, length)."""

    first: Any
    last: Any

    @property
    def is_any(self) -> Any:
        return self.first <= self.last

    def hold_any(self, flags: jax.Array) -> jax.Array:
        """Return whether a flag (B, heads, positions) holds in the range: (B, heads, length)."""
        count = jnp.pad(jnp.cumsum(flags.astype(jnp.int32), -1), ((0, 0), (0, 0), (1, 0)))
        last = jnp.maximum(self.last, self.first - 1) + 1
        shape = (*flags.shape[:2], self.last.shape[-1])
        upto = [
            jnp.take_along_axis(count, jnp.broadcast_to(x, shape), -1) for x in (self.first, last)
        ]
        return upto[1] > upto[0]


class _Problem(NamedTuple):
    """A masked attention."""

    options: dict[str, Any]  # of JAX' function
    # `of_rows`, `of_keys`: the keys that each row sees, and the rows that see each key
    of_rows: _Ranges
    of_keys: _Ranges


def _problem(spec: AttentionSpec) -> _Problem | None:
    """Return the mask as cuDNN takes it; None without a mask."""
    if spec.mask is None:
        return None
    lengths: Any = spec.lengths
    length, keys = lengths
    band: Any = spec.mask.as_band(length, keys)
    options: dict[str, Any] = {}
    i, j = jnp.arange(length)[None, None], jnp.arange(keys)[None, None]
    key_ends, query_ends = _ends(band.key_lengths, keys), _ends(band.query_lengths, length)
    if band.has_window:
        options["is_causal"] = True
        left = keys + length if band.left is None else band.left
        if band.left is not None:
            options["local_window_size"] = (band.left, 0)
        rows = _Ranges(jnp.clip(i - left, 0, keys), jnp.minimum(i, key_ends - 1))
        columns = _Ranges(jnp.minimum(j, length), jnp.minimum(j + left, query_ends - 1))
    else:
        rows = _Ranges(0 * i, key_ends - 1 + 0 * i)
        columns = _Ranges(0 * j, query_ends - 1 + 0 * j)
    # Sequences of length 0 get one key, whose result is replaced: cuDNN does not say what it makes of them.
    for name, ends in (("key_value", band.key_lengths), ("query", band.query_lengths)):
        if ends is not None:
            most = keys if name == "key_value" else length
            options[f"{name}_seq_lengths"] = jnp.clip(ends, 1, most).astype(jnp.int32)
    rows = _without(rows, i >= query_ends)
    columns = _without(columns, j >= key_ends)
    return _Problem(options, rows, columns)


def _ends(lengths: Any, most: int) -> Any:
    return most if lengths is None else jnp.clip(lengths, 0, most)[:, None, None]


def _without(ranges: _Ranges, where: Any) -> _Ranges:
    """Return the ranges, empty where the condition holds."""
    return _Ranges(jnp.where(where, 0, ranges.first), jnp.where(where, -1, ranges.last))


@jax.custom_vjp
def _run(spec: AttentionSpec, tensors: Tensors) -> tuple[jax.Array, Any]:
    """Return the output, and what cuDNN keeps for the backward pass."""
    problem = _problem(spec)
    operands = tensors[:3]
    if problem is None:
        output, pull = jax.vjp(_call(spec, {}), *operands)
        return output, jax.tree.leaves(pull)
    finite = [jnp.where(jnp.isfinite(x), x, jnp.asarray(0, x.dtype)) for x in operands]
    output, pull = jax.vjp(_call(spec, problem.options), *finite)
    output = _fill(spec, ~problem.of_rows.is_any, output, 0.0)
    output = _fill(spec, _bad_rows(spec, problem, operands), output, jnp.nan)
    return output, jax.tree.leaves(pull)


def _run_forward(spec: AttentionSpec, tensors: Tensors) -> Any:
    # By the function itself, whose derivative an outer differentiation then finds.
    output, kept = _run(spec, tensors)
    return (output, kept), (spec, tensors, kept)


def _run_backward(saved: Any, cotangents: Any) -> Any:
    # What is kept is no result of the attention: its gradient counts nowhere.
    return None, Tensors(*_gradients(*saved, cotangents[0]))


_run.defvjp(_run_forward, _run_backward)


@jax.custom_vjp
def _gradients(
    spec: AttentionSpec, tensors: Tensors, kept: Any, incoming: jax.Array
) -> tuple[jax.Array, ...]:
    """Return the gradients of query, key and value."""
    problem = _problem(spec)
    call = _call(spec, {} if problem is None else problem.options)
    # The function that pulls gradients back, with what was kept in its place.
    _, pull = jax.eval_shape(functools.partial(jax.vjp, call), *tensors[:3])
    pull = jax.tree.unflatten(jax.tree.structure(pull), kept)
    if problem is None:
        return pull(incoming)
    bad = _bad_rows(spec, problem, tensors[:3])
    seen = problem.of_rows.is_any
    bad = (bad | _by_head(spec, ~jnp.isfinite(incoming).all(-1))) & seen
    query, key, value = pull(_fill(spec, bad | ~seen, incoming, 0.0))
    hit = problem.of_keys.hold_any(bad)
    hit = hit.reshape(hit.shape[0], spec.kv_heads, -1, hit.shape[2]).any(2)
    query = _fill(spec, bad, _fill(spec, ~seen, query, 0.0), jnp.nan)
    key, value = (
        _fill(spec, hit, _fill(spec, ~problem.of_keys.is_any, x, 0.0), jnp.nan)
        for x in (key, value)
    )
    return query, key, value


def _gradients_forward(*arguments: Any) -> tuple[Any, Any]:
    return _gradients(*arguments), arguments


def _gradients_backward(saved: Any, cotangents: Sequence[Any]) -> Any:
    spec, tensors, _, incoming = saved

    def attend(trained: list[Any]) -> Any:
        return Portable().attend(spec, Tensors(*trained), return_lse=False)[0]

    second, of_incoming = second_derivatives(attend, list(tensors[:3]), incoming, cotangents)
    return None, Tensors(*second), None, of_incoming


_gradients.defvjp(_gradients_forward, _gradients_backward)


def _call(spec: AttentionSpec, options: dict[str, Any]) -> Callable[..., jax.Array]:
    """Return attention by cuDNN as a function of query, key and value in the layout of the spec."""
    product: Any = spec.score.product

    def call(*operands: jax.Array) -> jax.Array:
        swap = spec.layout != "BTNH"
        output = jax.nn.dot_product_attention(
            *(jnp.swapaxes(x, 1, 2) if swap else x for x in operands),
            scale=product.scale,
            implementation="cudnn",
            **options,
        )
        return jnp.swapaxes(output, 1, 2) if swap else output

    return call


def _by_head(spec: AttentionSpec, x: jax.Array) -> jax.Array:
    """Bring the layout of the spec to (B, N, ...), and back."""
    return jnp.swapaxes(x, 1, 2) if spec.layout == "BTNH" else x


def _fill(spec: AttentionSpec, where: jax.Array, x: jax.Array, number: float) -> jax.Array:
    """Return `x` with a number in the rows (B or 1, N or 1, T) where the condition holds."""
    return jnp.where(_by_head(spec, where)[..., None], jnp.asarray(number, x.dtype), x)


def _bad_rows(spec: AttentionSpec, problem: _Problem, operands: Sequence[jax.Array]) -> jax.Array:
    """Return which rows see a nonfinite number: (B, N, T)."""
    query, key, value = (_by_head(spec, ~jnp.isfinite(x).all(-1)) for x in operands)
    found = problem.of_rows.hold_any(key | value)
    found = jnp.repeat(found, spec.queries_per_kv, axis=1)
    return (query | found) & problem.of_rows.is_any
