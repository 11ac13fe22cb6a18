"""Traces Keras' recurrent layers as loops over plain tensors, which other runtimes have.

Keras itself keeps the inputs and outputs of a loop in TensorFlow's lists of tensors, and calls cuDNN on a GPU.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from heed.keras_modules import recurrent_backend
from heed.patching import ContextPatch, activate


def plain_loops() -> AbstractContextManager[None]:
    """Trace LSTM, GRU, SimpleRNN, RNN and Bidirectional to a loop over plain tensors, in this thread or task."""
    return activate(_patches())


@functools.cache
def _patches() -> list[ContextPatch]:
    backend = recurrent_backend()
    return [
        ContextPatch(backend, "rnn", _make_rnn),
        # Keras' layers then fall back to `rnn`.
        *(ContextPatch(backend, name, lambda _: _not_implemented) for name in ("lstm", "gru")),
    ]


def _not_implemented(*_: Any, **__: Any) -> Any:
    raise NotImplementedError


def _make_rnn(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of Keras' `rnn`, with the same arguments and results."""

    def rnn(step_function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        bound = inspect.signature(original).bind(step_function, *args, **options)
        if bound.arguments.pop("unroll", False):  # without a loop
            return original(step_function, *args, **options)
        return _run(**bound.arguments)

    return rnn


def _run(
    step_function: Callable[..., Any],
    inputs: Any,
    initial_states: Any,
    go_backwards: bool = False,
    mask: Any = None,
    constants: Any = None,
    input_length: Any = None,
    time_major: bool = False,
    zero_output_for_mask: bool = False,
    return_all_outputs: bool = True,
) -> Any:
    def order(x: Any) -> Any:
        """Return (T, B, ...), in the order of the steps."""
        x = x if time_major else _swap_axes(x)
        return tf.reverse(x, [0]) if go_backwards else x

    counts = None
    if mask is not None:
        counts = order(tf.cast(mask if len(mask.shape) > 2 else mask[..., None], tf.bool))
    output, states, outputs = _loop(
        lambda x, states: step_function(x, (*states, *(constants or ()))),
        keras.tree.map_structure(order, inputs),
        tuple(initial_states),
        counts,
        zero_output_for_mask,
        return_all_outputs,
    )
    if not time_major:
        outputs = keras.tree.map_structure(_swap_axes, outputs)
    return output, outputs, list(states)


def _loop(
    step: Callable[..., Any],
    inputs: Any,
    initial_states: Any,
    counts: Any,
    zero_where_masked: bool,
    all_outputs: bool,
) -> tuple[Any, Any, Any]:
    """Return the last output (B, ...), the last states, and the outputs (T, B, ...) or only the last one (1, B, ...).

    `counts` are booleans (T, B, 1), False for steps to skip, or None; a skipped step gives 0 if `zero_where_masked`,
    else the output of the step before.
    """
    tree = keras.tree
    first = tree.flatten(inputs)[0]
    length, batch = tf.shape(first)[0], tf.shape(first)[1]

    def at(time: Any, x: Any) -> Any:
        return tree.map_structure(lambda one: tf.gather(one, time), x)

    def zeros(like: Any, *first: Any) -> Any:
        return tf.zeros(tf.stack([*first, batch, *like.shape[1:]]), like.dtype)

    # Only the shapes of this output are used.
    output, _ = step(at(0, inputs), initial_states)
    output = tree.map_structure(zeros, output)
    kept = tree.map_structure(lambda x: zeros(x, length), output) if all_outputs else ()

    def body(time: Any, output: Any, states: Any, kept: Any) -> Any:
        new, new_states = step(at(time, inputs), states)
        # A cell may return its states in another structure.
        new_states = tree.pack_sequence_as(states, tree.flatten(new_states))
        if counts is not None:
            now = tf.gather(counts, time)
            skipped = tree.map_structure(tf.zeros_like, new) if zero_where_masked else output
            new = _where(now, new, skipped)
            new_states = _where(now, new_states, states)
        if all_outputs:
            here = tf.equal(tf.range(length), time)
            kept = tree.map_structure(
                lambda x, rows: tf.where(_expand(here, rows), tf.expand_dims(x, 0), rows),
                new,
                kept,
            )
        return time + 1, new, new_states, kept

    _, output, states, kept = tf.while_loop(
        lambda time, *_: time < length, body, (tf.constant(0), output, initial_states, kept)
    )
    outputs = kept if all_outputs else tree.map_structure(lambda x: tf.expand_dims(x, 0), output)
    return output, states, outputs


def _swap_axes(x: Any) -> Any:
    """Map (B, T, ...) to (T, B, ...) and back."""
    return tf.transpose(x, (1, 0, *range(2, len(x.shape))))


def _expand(x: Any, like: Any) -> Any:
    """Append axes of length 1 until `x` has the rank of `like`."""
    for _ in range(len(like.shape) - len(x.shape)):
        x = tf.expand_dims(x, -1)
    return x


def _where(counts: Any, new: Any, old: Any) -> Any:
    """Return the structure `new` where `counts` (B, 1), else `old`."""
    return keras.tree.map_structure(lambda a, b: tf.where(_expand(counts, a), a, b), new, old)
