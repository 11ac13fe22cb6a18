"""The custom calls, with rules for `jax.vmap`: the mapped axis becomes part of the batch.

Their arguments are arrays in the order of `native/adapters/shared/call.h`. Additive attention, dropout, functions of
scores or masks, and slopes that differ between entries are mapped one entry at a time: their numbers belong to a whole
batch.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from heed.ops.backends.jax.native import library
from heed.ops.core.attention import describe
from heed.ops.core.form import Form, read
from heed.ops.core.library import load

Several = Sequence[jax.Array]
# The arrays before the operands: query, key and value, and in the backward pass output, softmax, and the gradients of
# output and log-sum-exp.
_FORWARD, _BACKWARD = 3, 7
_SOFTMAX = 4


def forward(form: Form, arrays: Several) -> tuple[jax.Array, ...]:
    """Return output, log-sum-exp and the numbers for the backward pass."""
    return _mapped(_forward, _forward_folded, form)(arrays)


def backward(form: Form, arrays: Several) -> tuple[jax.Array, ...]:
    """Return gradients of query, key, value; of additive attention's score vector and bias (U,); of captured arrays."""
    return _mapped(_backward, _backward_folded, form)(arrays)


def bias_gradient(form: Form, arrays: Several) -> jax.Array:
    """Return the gradient of the bias of dot-product attention."""
    return _mapped(_bias_gradient, _bias_gradient_folded, form)(arrays)


def _call(target: str, results: Any, form: Form, arrays: Several) -> Any:
    ffi = library.load()[0]
    packed = np.frombuffer(form.pack(), np.int64)
    return ffi.ffi_call(target, results)(*arrays, form=packed)


def _forward(form: Form, arrays: Several) -> tuple[jax.Array, ...]:
    query, key, value = arrays[:3]
    spec, _ = read(form, query, key, value, arrays[3:])
    sizes = spec.batch, spec.heads, spec.lengths, spec.widths
    size = load()[0].heed_softmax_size(ctypes.byref(describe(form, query.dtype.name, *sizes)))
    results = [
        jax.ShapeDtypeStruct((*query.shape[:-1], value.shape[-1]), query.dtype),
        jax.ShapeDtypeStruct(spec.lse_shape, spec.dtype),
        jax.ShapeDtypeStruct((size,), spec.dtype),
    ]
    return tuple(_call("heed_xla_forward", results, form, arrays))


def _backward(form: Form, arrays: Several) -> tuple[jax.Array, ...]:
    like = [*arrays[:3]]
    if form.is_additive:
        like += [arrays[_BACKWARD + form.header.score_vector]] * 2
    like += [arrays[_BACKWARD + place] for place in form.captured_places]
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like]
    return tuple(_call("heed_xla_backward", results, form, arrays))


def _bias_gradient(form: Form, arrays: Several) -> jax.Array:
    bias = arrays[_BACKWARD + form.header.bias]
    result = jax.ShapeDtypeStruct(bias.shape, bias.dtype)
    return _call("heed_xla_bias_gradient", result, form, arrays)


@functools.lru_cache(maxsize=1024)
def _mapped(function: Callable[..., Any], folded: Callable[..., Any], form: Form) -> Any:
    """Return the function of arrays with its rule for `vmap`, which may apply several times."""
    call = custom_vmap(functools.partial(function, form))
    slopes = form.header.slopes + (_FORWARD if function is _forward else _BACKWARD)

    @call.def_vmap
    def rule(count: int, batched: Any, arrays: Any) -> tuple[Any, Any]:
        has_slopes = form.header.slopes >= 0 and batched[0][slopes]
        if form.is_additive or form.dropout or form.words or has_slopes:
            result = _one_by_one(call, batched, [arrays])
        else:
            result = folded(form, count, batched[0], arrays)
        return result, jax.tree.map(lambda _: True, result)

    return call


def _one_by_one(call: Callable[..., Any], batched: Any, arrays: Any) -> Any:
    leaves, structure = jax.tree.flatten(arrays)
    places = [i for i, is_batched in enumerate(jax.tree.leaves(batched)) if is_batched]

    def one(entry: list[Any]) -> Any:
        every = list(leaves)
        for place, x in zip(places, entry, strict=True):
            every[place] = x
        return call(*jax.tree.unflatten(structure, every))

    return jax.lax.map(one, [leaves[i] for i in places])


def _fold(x: Any, is_batched: bool, count: int, rows: int | None = None) -> Any:
    """Return (M, B, ...) or (B, ...) to (M * B, ...), where `rows` replaces a B of 1."""
    if not is_batched:
        x = jnp.broadcast_to(x, (count, *x.shape))
    if rows is not None and x.shape[1] != rows:
        x = jnp.broadcast_to(x, (count, rows, *x.shape[2:]))
    return x.reshape(-1, *x.shape[2:])


def _fold_all(
    form: Form, first: int, count: int, batched: Any, arrays: Several, every_bias: bool = False
) -> list[Any]:
    """Return all arrays of a call with the mapped axis as part of the batch.

    Args:
        first: the number of arrays before the operands.
        every_bias: whether each entry gets a bias of its own, even where all have the same.
    """
    rows = arrays[0].shape[1 if batched[0] else 0]

    def operand(place: int, x: Any, is_batched: bool) -> Any:
        """Return unchanged where one entry serves all."""
        if x.ndim == int(is_batched):  # a number of a mask
            x = x[..., None]
        always = every_bias and place == form.header.bias
        if place == form.header.slopes or not (is_batched or always or x.shape[0] != 1):
            return x
        return _fold(x, is_batched, count, rows)

    pairs = list(zip(arrays, batched, strict=True))
    folded = [_fold(x, flag, count) for x, flag in pairs[:first]]
    if first > _SOFTMAX:
        folded[_SOFTMAX] = _fold_softmax(*pairs[_SOFTMAX], count)
    return folded + [operand(place, *pair) for place, pair in enumerate(pairs[first:])]


def _unfold(x: Any, count: int) -> Any:
    return x.reshape(count, x.shape[0] // count, *x.shape[1:])


def _fold_softmax(x: Any, is_batched: bool, count: int) -> Any:
    """Map (M, 2 B N T), two parts for each entry, to (2 M B N T,), each part of all entries."""
    x = x if is_batched else jnp.broadcast_to(x, (count, *x.shape))
    return jnp.swapaxes(x.reshape(count, 2, -1), 0, 1).reshape(-1)


def _forward_folded(form: Form, count: int, batched: Any, arrays: Several) -> Any:
    output, lse, softmax = forward(form, _fold_all(form, _FORWARD, count, batched, arrays))
    softmax = jnp.swapaxes(softmax.reshape(2, count, -1), 0, 1).reshape(count, -1)
    return _unfold(output, count), _unfold(lse, count), softmax


def _backward_folded(form: Form, count: int, batched: Any, arrays: Several) -> Any:
    found = backward(form, _fold_all(form, _BACKWARD, count, batched, arrays))
    return tuple(_unfold(x, count) for x in found)


def _bias_gradient_folded(form: Form, count: int, batched: Any, arrays: Several) -> Any:
    # A gradient for each entry, even where all entries have one bias.
    folded = _fold_all(form, _BACKWARD, count, batched, arrays, every_bias=True)
    found = _unfold(bias_gradient(form, folded), count)
    place = _BACKWARD + form.header.bias
    rows = arrays[place].shape[1 if batched[place] else 0]
    return found if rows == found.shape[1] else found.sum(1, keepdims=True)
