"""`capture`: the attention weights of a model, from one run that it does not change."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from heed._numbers import check_integer
from heed.inspect import _names
from heed.inspect._capture import Capture, Layer
from heed.inspect._picture import picture_of
from heed.inspect._seen import Rows, Seen, States
from heed.inspect._watch import Look, Session, is_attention, watch

Some = Sequence[int] | Mapping[str, Sequence[int]] | None


def capture(
    model: Any,
    inputs: Any,
    *,
    layers: Sequence[str] | None = None,
    heads: Some = None,
    rows: Some = None,
    size: int | None = 512,
    tokens: Sequence[int] = (0,),
    call_arguments: Mapping[str, Any] | None = None,
) -> Capture:
    """Runs a model once, as `model(inputs, training=False)`, and returns the weights of every attention in it.

    The model computes what it always does, bit by bit; the weights are taken, or computed beside it, in blocks. It
    sees heed's layers and ops, the attention layers of Keras and KerasHub, accelerated or not, and whatever layer
    calls `keras.ops.dot_product_attention`, or `keras.ops.softmax` in a class with "Attention" in its name. What the
    states (B, D) of a recurrent decoder ask a layer, one after the other, is one attention of T queries.

    Args:
        model: a Keras model or layer.
        inputs: its first argument.
        layers: names of attention layers: the name of the layer itself, or with those of the layers around it, as
            "block_1/attention". Default: all.
        heads: which heads, integers in [0, N), of every layer, or by layer name. Default: all.
        rows: which queries, integers in [0, T), of every layer, or by layer name. Default: all.
        size: a picture longer or wider than this is pooled to at most this (see `Capture`), unless `rows` are given.
            None: never. With the default, 12 layers of 12 heads at T = S = 1024 take 151 MB a batch entry.
        tokens: for which keys `on_token` is to work where a picture is not whole. Keys beyond S are left out.
        call_arguments: further arguments of the call, by name.

    Returns:
        A `Capture`, with `outputs`.

    Raises:
        ValueError: for a model without attention; for layers that are not there, with the names of those that are;
            for heads, rows or tokens out of range.
        TypeError: if `model` is not a Keras layer.
        RuntimeError: if Keras does not run on TensorFlow, or a layer runs inside a `tf.function`.

    Numerics: weights are float32 (float64 for float64); those that a layer of Keras holds itself have its precision.
        A row that may attend to nothing is 0, also where Keras attends evenly to everything.

    >>> import keras, numpy as np
    >>> x = keras.Input((6, 8))
    >>> y = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x, use_causal_mask=True)
    >>> model = keras.Model(x, y)
    >>> found = capture(model, np.random.default_rng(0).normal(size=(1, 6, 8)))
    >>> found
    <Capture of 1 layer
      attention: causal, 1 x 2 heads x 6 x 6>
    >>> found.weights["attention"][0, 0].sum(-1).round(3).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    size = check_integer("size", size, least=1, optional=True)
    taken: dict[str, dict[str, Any]] = {}
    states: dict[str, list[Seen]] = {}

    def draw(full: str, seen: Rows) -> None:
        _, N, T, S = seen.sizes
        chosen_heads = _chosen("heads", heads, full, N) or tuple(range(N))
        chosen_rows = _chosen("rows", rows, full, T)
        keys = [token for token in _integers("tokens", tokens, None, full) if token < S]
        picture, statistics = picture_of(seen, chosen_heads, chosen_rows, size, keys)
        taken[full] |= {
            "weights": picture,
            "heads": chosen_heads,
            "rows": chosen_rows,
            "lengths": (T, S),
            "starts": seen.start,
            "statistics": statistics,
        }

    def take(full: str, seen: Seen, kind: str) -> None:
        taken.setdefault(full, {"kind": kind})
        if seen.sizes[2] == 1:  # there may be more of them: they are drawn when all have been seen
            states.setdefault(full, []).append(seen)
        else:
            draw(full, seen)

    outputs, names = run(model, inputs, call_arguments, take, layers)
    for full, steps in states.items():
        draw(full, States(steps))
    for option, given in (("heads", heads), ("rows", rows)):
        if isinstance(given, Mapping):
            _names.check(option, given, list(names))
    return Capture._of([Layer(names[full], **x) for full, x in taken.items()], outputs)


def run(
    model: Any,
    inputs: Any,
    call_arguments: Mapping[str, Any] | None,
    look: Look,
    layers: Sequence[str] | None = None,
) -> tuple[Any, dict[str, str]]:
    """Runs a model while `look` sees its attention.

    Args:
        model, inputs, call_arguments, layers: as for `capture`.
        look: is shown each attention of the chosen layers.

    Returns:
        What the model does; and by the full name of each attention that ran the name that people see.

    Raises:
        ValueError, TypeError: as `capture`.
    """
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(f"`model` must be a Keras model or layer. Received: model={model!r}")
    if layers is not None:
        if isinstance(layers, str) or any(not isinstance(name, str) for name in layers):
            raise TypeError(f"`layers` must be a list of names. Received: layers={layers!r}")
        if not layers:
            raise ValueError(f"`layers` must not be empty. Received: layers={layers!r}")
    with watch(look, layers) as session:
        outputs = model(inputs, training=False, **(call_arguments or {}))
    missed = _missed(model, session)
    if not session.names:
        known = f"; it has {', '.join(missed)}" if missed else ""
        raise ValueError(
            "`model` must have attention that runs through heed, keras.ops or the attention layers of Keras and "
            f"KerasHub, outside of a tf.function. Received: {model.name!r}, which ran none that can be seen{known}"
        )
    if missed:
        warnings.warn(
            f"No attention was seen in {', '.join(missed)}: they did not run, or ran inside a tf.function that had "
            "been traced before, or compute weights without heed and keras.ops.",
            stacklevel=3,
        )
    _names.check("layers", layers or (), session.names)
    return outputs, dict(zip(session.names, _names.short_names(session.names), strict=True))


def _missed(model: Any, session: Session) -> list[str]:
    """Names of layers that look like attention, and in which none was seen."""
    layers = [model, *model._flatten_layers(include_self=False)]
    return [
        f"{layer.name!r} ({type(layer).__name__})"
        for layer in layers
        if is_attention(layer) and id(layer) not in session.with_attention
    ]


def _chosen(option: str, given: Some, full: str, limit: int) -> tuple[int, ...] | None:
    """The heads or rows of one layer, or None for all."""
    if isinstance(given, Mapping):
        given = next((x for name, x in given.items() if _names.answers(name, full)), None)
    return None if given is None else _integers(option, given, limit, full)


def _integers(option: str, given: Any, limit: int | None, full: str) -> tuple[int, ...]:
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"`{option}` must be a list of integers. Received: {option}={given!r}")
    chosen = tuple(int(i) for i in array)
    if limit is not None and not chosen:
        raise ValueError(f"`{option}` must not be empty. Received: {option}={given!r}")
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"`{option}` must not repeat. Received: {option}={given!r}")
    if min(chosen, default=0) < 0 or (limit is not None and max(chosen) >= limit):
        upper = "S" if limit is None else limit
        raise ValueError(
            f"`{option}` must be in [0, {upper}) for {full!r}. Received: {option}={given!r}"
        )
    return chosen
