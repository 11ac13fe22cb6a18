"""The custom calls, with rules for `jax.vmap`: the mapped axis becomes part of the batch.

Additive attention, dropout, and slopes or seeds that differ between entries are mapped one entry at a time: their
numbers belong to a whole batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from heed.ops.backends.jax.native import library
from heed.ops.backends.jax.native.wire import Inputs, Kind, shape, softmax_size

# Of the backward pass: softmax and output of the forward pass, and the gradients of output and log-sum-exp.
Extras = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def forward(kind: Kind, inputs: Inputs) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Output, log-sum-exp (B, N, T) and the numbers for the backward pass."""
    return _mapped(_forward, _forward_folded, kind)(inputs)


def backward(kind: Kind, inputs: Inputs, extras: Extras) -> tuple[jax.Array, ...]:
    """The gradients of query, key and value; for additive attention of score vector and bias (U,), too."""
    return _mapped(_backward, _backward_folded, kind)(inputs, extras)


def bias_gradient(kind: Kind, inputs: Inputs, extras: Extras) -> jax.Array:
    """The gradient of the bias of dot-product attention."""
    return _mapped(_bias_gradient, _bias_gradient_folded, kind)(inputs, extras)


def _call(target: str, results: Any, kind: Kind, arguments: list[Any]) -> Any:
    ffi = library.load()[0]
    return ffi.ffi_call(target, results)(*arguments, **kind.attributes())


def _forward(kind: Kind, inputs: Inputs) -> tuple[jax.Array, ...]:
    query, value = inputs.query, inputs.value
    batch, heads, length, _ = kind.sizes(query, inputs.key)
    results = [
        jax.ShapeDtypeStruct((*query.shape[:-1], value.shape[-1]), query.dtype),
        jax.ShapeDtypeStruct((batch, heads, length), kind.dtype),
        jax.ShapeDtypeStruct((softmax_size(kind, inputs),), kind.dtype),
    ]
    return tuple(_call("heed_xla_forward", results, kind, inputs.arguments()))


def _backward(kind: Kind, inputs: Inputs, extras: Extras) -> tuple[jax.Array, ...]:
    results = [shape(x) for x in inputs[:3]]
    if kind.is_additive:
        results += [shape(inputs.score_vector)] * 2
    return tuple(_call("heed_xla_backward", results, kind, inputs.arguments(*extras)))


def _bias_gradient(kind: Kind, inputs: Inputs, extras: Extras) -> jax.Array:
    arguments = inputs.arguments(*extras)
    return _call("heed_xla_bias_gradient", shape(inputs.bias), kind, arguments)


@functools.lru_cache(maxsize=1024)
def _mapped(function: Callable[..., Any], folded: Callable[..., Any], kind: Kind) -> Any:
    """The function of arrays with its rule for `vmap`, which may apply several times."""
    call = custom_vmap(functools.partial(function, kind))

    @call.def_vmap
    def rule(count: int, batched: Any, *arrays: Any) -> tuple[Any, Any]:
        of_batch = (kind.is_additive, kind.settings.dropout, batched[0].slopes)
        if any(of_batch):
            result = _one_by_one(call, batched, arrays)
        else:
            result = folded(kind, count, batched, *arrays)
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
    """(M, B, ...) or (B, ...) to (M * B, ...), where `rows` replaces a B of 1."""
    if not is_batched:
        x = jnp.broadcast_to(x, (count, *x.shape))
    if rows is not None and x.shape[1] != rows:
        x = jnp.broadcast_to(x, (count, rows, *x.shape[2:]))
    return x.reshape(-1, *x.shape[2:])


def _fold_inputs(count: int, batched: Inputs, inputs: Inputs, every_bias: bool = False) -> Inputs:
    rows = inputs.query.shape[1] if batched.query else inputs.query.shape[0]

    def of_batch(x: Any, is_batched: bool, always: bool = False) -> Any:
        """Unchanged where one entry serves all."""
        if x is None or not (is_batched or always or x.shape[0] != 1):
            return x
        return _fold(x, is_batched, count, rows)

    def each(several: Any, flags: Any) -> Any:
        return tuple(map(of_batch, several, flags))

    return inputs._replace(
        query=_fold(inputs.query, batched.query, count),
        key=_fold(inputs.key, batched.key, count),
        value=_fold(inputs.value, batched.value, count),
        bias=of_batch(inputs.bias, batched.bias, every_bias),
        numbers=each(inputs.numbers, batched.numbers),
        arrays=each(inputs.arrays, batched.arrays),
    )


def _unfold(x: Any, count: int) -> Any:
    return x.reshape(count, x.shape[0] // count, *x.shape[1:])


def _fold_softmax(x: Any, is_batched: bool, count: int) -> Any:
    """(M, 2 B N T), two parts for each entry, to (2 M B N T,), each part of all entries."""
    x = x if is_batched else jnp.broadcast_to(x, (count, *x.shape))
    return jnp.swapaxes(x.reshape(count, 2, -1), 0, 1).reshape(-1)


def _fold_extras(count: int, batched: Any, extras: Extras) -> Extras:
    others = (_fold(x, flag, count) for x, flag in zip(extras[1:], batched[1:], strict=True))
    return (_fold_softmax(extras[0], batched[0], count), *others)


def _forward_folded(kind: Kind, count: int, batched: Any, inputs: Inputs) -> Any:
    output, lse, softmax = forward(kind, _fold_inputs(count, batched[0], inputs))
    softmax = jnp.swapaxes(softmax.reshape(2, count, -1), 0, 1).reshape(count, -1)
    return _unfold(output, count), _unfold(lse, count), softmax


def _backward_folded(kind: Kind, count: int, batched: Any, inputs: Inputs, extras: Extras) -> Any:
    folded = _fold_inputs(count, batched[0], inputs), _fold_extras(count, batched[1], extras)
    return tuple(_unfold(x, count) for x in backward(kind, *folded))


def _bias_gradient_folded(
    kind: Kind, count: int, batched: Any, inputs: Inputs, extras: Extras
) -> Any:
    # A gradient for each entry, even where all entries have one bias.
    folded = _fold_inputs(count, batched[0], inputs, every_bias=True)
    found = bias_gradient(kind, folded, _fold_extras(count, batched[1], extras))
    rows = inputs.bias.shape[1] if batched[0].bias else inputs.bias.shape[0]
    found = _unfold(found, count)
    return found if rows == found.shape[1] else found.sum(1, keepdims=True)
