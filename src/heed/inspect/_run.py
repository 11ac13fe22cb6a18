"""`capture`: the attention weights of a model, from one run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from heed.inspect import _names
from heed.inspect._blocks import is_attention
from heed.inspect._capture import Capture, CapturedLayer
from heed.inspect._observed import ObservedAttention, StepwiseAttention, WeightRows
from heed.inspect._picture import compute_picture
from heed.inspect._residual import Recorder
from heed.inspect._watch import Observer, Returned, Session, Tap, watch
from heed.number_checks import check_integer
from heed.ops.backends import current

Selection = Sequence[int] | Mapping[str, Sequence[int]] | None


def capture(
    model: Any,
    inputs: Any,
    *,
    layers: Sequence[str] | None = None,
    heads: Selection = None,
    rows: Selection = None,
    size: int | None = 512,
    tokens: Sequence[int] = (0,),
    residual: bool = False,
    call_arguments: Mapping[str, Any] | None = None,
) -> Capture:
    """Run a model once, as `model(inputs, training=False)`, and return the weights of every attention in it.

    The outputs stay the same, bit by bit: weights are read from the layer, or recomputed in blocks. On JAX, a loop with
    attention inside runs step by step meanwhile, which is rounded differently.

    Captures heed's layers and ops, the attention layers of Keras and KerasHub, accelerated or not, and every layer that
    calls `keras.ops.dot_product_attention`, or `keras.ops.softmax` in a class with "Attention" in its name. The T steps
    of a recurrent decoder, each with a query (B, D), count as one attention of T queries.

    Args:
        model: a Keras model or layer.
        inputs: its first argument.
        layers: names of attention layers, with or without the enclosing layers, as "block_1/attention" or
            "attention", or of layers around them, as "block_1"; with `residual` also of places, as "block_1/output".
            Default: all.
        heads: which heads, integers in [0, N), of every layer, or by layer name. Default: all.
        rows: which queries, integers in [0, T), of every layer, or by layer name. Default: all.
        size: larger pictures are pooled to at most `size` rows and columns (see `Capture`), unless `rows` are given.
            None: no pooling. With the default, 12 layers of 12 heads at T = S = 1024 take 151 MB a batch entry.
        residual: whether to record the residual stream too, what each part of a block adds to it, and the output of
            each head, see `Residual`; of the chosen layers, at the chosen rows. The blocks of heed and KerasHub are
            known; a block of yours is a layer (no model) with an attention layer and a feed-forward layer.
        tokens: the keys that `on_token` supports where a picture is not whole. Keys beyond S are ignored.
        call_arguments: further arguments of the call, by name.

    Returns:
        A `Capture`, with `outputs`, and with `residual` if wanted.

    Raises:
        ValueError: if the model has no attention, if a layer does not exist (the message lists those that do), or if
            heads, rows or tokens are out of range.
        TypeError: if `model` is not a Keras layer.
        RuntimeError: if a layer runs inside a compiled function, such as a `tf.function`.

    Numerics: weights are float32 (float64 for float64). Weights that a Keras layer computes itself have its precision.
        A row that may attend to nothing is 0, even where Keras attends uniformly to all keys.

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
    if tokens is None or isinstance(tokens, Mapping):
        raise TypeError(f"`tokens` must be a list of integers. Received: tokens={tokens!r}")
    captured: dict[str, dict[str, Any]] = {}
    steps: dict[str, list[ObservedAttention]] = {}

    def draw(full: str, attention: WeightRows) -> None:
        _, N, T, S = attention.sizes
        chosen_heads = _select("heads", heads, full, N) or tuple(range(N))
        chosen_rows = _select("rows", rows, full, T)
        keys = [token for token in _select("tokens", tokens, full, None) or () if token < S]
        picture, statistics = compute_picture(attention, chosen_heads, chosen_rows, size, keys)
        captured[full] |= {
            "weights": picture,
            "heads": chosen_heads,
            "rows": chosen_rows,
            "lengths": (T, S),
            "starts": attention.start,
            "statistics": statistics,
        }

    def take(full: str, attention: ObservedAttention, kind: str) -> None:
        captured.setdefault(full, {"kind": kind})
        if attention.sizes[2] == 1:  # perhaps a step of a recurrent decoder, drawn with the others
            steps.setdefault(full, []).append(attention)
        else:
            draw(full, attention)

    def choose(full: str, T: int) -> tuple[int, ...] | bool | None:
        if layers is not None and not any(_names.selects(name, full) for name in layers):
            return False
        return _select("rows", rows, full, T) if T > 1 else None

    recorder = Recorder(choose) if residual else None
    taps = () if recorder is None else (recorder,)
    call = ModelCall(model, inputs, call_arguments)
    with current().without_gradients():
        outputs, names = run_observed(call, take, layers, taps=taps)
        for full, attentions in steps.items():
            draw(full, StepwiseAttention(attentions))
    for option, given in (("heads", heads), ("rows", rows)):
        if isinstance(given, Mapping):
            _names.check_names(option, given, [*names, *(recorder.names if recorder else ())])
    stream = None if recorder is None else recorder.finish()
    parts = [CapturedLayer(names[full], **x) for full, x in captured.items()]
    return Capture._of(parts, outputs, stream)


class ModelCall:
    """A call of a model that can be repeated; arguments as for `capture`."""

    def __init__(
        self, model: Any, inputs: Any, call_arguments: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(model, keras.layers.Layer):
            raise TypeError(f"`model` must be a Keras model or layer. Received: model={model!r}")
        for x in keras.tree.flatten(inputs):
            if isinstance(x, Iterator):
                raise TypeError(
                    "`inputs` must be arrays, which several runs can read. "
                    f"Received: a {type(x).__name__}, which the first run would use up"
                )
        self.model, self.inputs, self.arguments = model, inputs, dict(call_arguments or {})

    def __call__(self) -> Any:
        return self.model(self.inputs, training=False, **self.arguments)


def run_observed(
    call: ModelCall,
    observer: Observer | None,
    layers: Sequence[str] | None = None,
    traced: bool = False,
    taps: Sequence[Tap] = (),
    kept: dict[str, Returned] | None = None,
) -> tuple[Any, dict[str, str]]:
    """Run a model and report the attention of the chosen layers to `observer`; see `Session`.

    Returns:
        The outputs of the model, and the short name of each attention that ran by its full name.
    """
    check_layers(layers)
    model = call.model
    with watch(Session(observer, layers, traced, taps, kept=kept)) as session:
        outputs = call()
    missed = [] if traced else _find_missed(model, session)
    if not session.names:
        known = f"; it has {', '.join(missed)}" if missed else ""
        raise ValueError(
            "`model` must have attention that runs through heed, keras.ops or the attention layers of Keras and "
            f"KerasHub, outside of a compiled function. Received: {model.name!r}, which ran none that can be captured"
            f"{known}. To capture an attention by hand, let it call `heed.ops.dot_product_attention`; to capture one "
            "inside a compiled function, call that function without compiling it"
        )
    if missed:
        warnings.warn(
            f"No attention was seen in {', '.join(missed)}: they did not run, or ran inside a function that had been "
            "compiled before, or compute weights without heed and keras.ops.",
            stacklevel=3,
        )
    places = [name for name in session.places if not name.endswith("/weights")]
    known_names = [*session.names, *places]
    _names.check_names("layers", layers or (), known_names)
    return outputs, dict(zip(session.names, _names.shorten_names(session.names), strict=True))


def check_layers(layers: Sequence[str] | None) -> None:
    if layers is not None:
        if isinstance(layers, str) or any(not isinstance(name, str) for name in layers):
            raise TypeError(f"`layers` must be a list of names. Received: layers={layers!r}")
        if not layers:
            raise ValueError(f"`layers` must not be empty. Received: layers={layers!r}")


def check_function(option: str, given: Any) -> None:
    if not callable(given):
        raise TypeError(f"`{option}` must be a function of the outputs. Received: {given!r}")


def _find_missed(model: Any, session: Session) -> list[str]:
    """Return names of layers that look like attention but reported none."""
    layers = [model, *model._flatten_layers(include_self=False)]
    return [
        f"{layer.name!r} ({type(layer).__name__})"
        for layer in layers
        if is_attention(layer) and layer not in session.with_attention
    ]


def _select(option: str, given: Selection, full: str, limit: int | None) -> tuple[int, ...] | None:
    """Return the chosen heads, rows or keys of one layer; None for all."""
    if isinstance(given, Mapping):
        given = next((x for name, x in given.items() if _names.selects(name, full)), None)
    chosen = _names.check_indices(option, given, limit, f" for {full!r}")
    if chosen is not None and len(set(chosen)) != len(chosen):
        raise ValueError(f"`{option}` must not repeat. Received: {option}={given!r}")
    return chosen
