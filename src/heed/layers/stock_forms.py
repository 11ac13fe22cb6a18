"""heed's layers written in Keras' own, for models that load without heed.

A form is a function that applies stock layers to symbolic tensors as a layer's `call` does. `stock_copy` walks the
graph of a model and replaces layers by their forms. A layer that has no form raises a `StockFormError` with the
reason; the errors of a model are reported together.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from heed.layers._base_layers import bind_call
from heed.layers._embedding import TokenEmbedding
from heed.layers._feed_forward import FeedForward
from heed.layers._multi_head_attention import MultiHeadAttention
from heed.layers._positions import LearnedPositions, SinusoidalPositions
from heed.layers._transformer_layers import (
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    residual_step,
)
from heed.layers.attend import pack_outputs
from heed.layers.dropout import Dropout
from heed.layers.flat_dense import FlatDense, FlatEinsumDense
from heed.layers.masks import carry, implicit_mask
from heed.layers.normalization import LayerNormalization, RMSNormalization
from heed.ops import Mask

# Arguments of GroupQueryAttention by the names that MultiHeadAttention has for them.
GROUPED = {"num_query_heads": "num_heads", "head_dim": "key_dim"}
# Arguments of every layer.
_COMMON = {"name", "trainable", "dtype"}
# The options that Keras' attention does not have, with the value at which each is off.
_BEYOND = {
    name: parameter.default
    for name, parameter in inspect.signature(MultiHeadAttention.__init__).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name != "num_key_value_heads"
}
# heed's layers that differ from Keras' only in how they compute.
SAME = {
    Dropout: "Dropout",
    FlatDense: "Dense",
    FlatEinsumDense: "EinsumDense",
    LayerNormalization: "LayerNormalization",
    RMSNormalization: "RMSNormalization",
}
# Layers whose stock forms drop a Keras mask.
_WITHOUT_MASK = (LearnedPositions, RMSNormalization, SinusoidalPositions)
# The form of each class: form(copy, layer, *args, **kwargs).
FORMS: dict[type, Callable[..., Any]] = {}
# The symbolic inputs of the forms of models that have no graph of layers, by class.
INPUTS: dict[type, Callable[[], Any]] = {}


class StockFormError(ValueError):
    """A layer cannot be written in Keras' own; the message says why."""


def stock_form(cls: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the form of a class."""

    def registered(form: Callable[..., Any]) -> Callable[..., Any]:
        FORMS[cls] = form
        return form

    return registered


def stock_attention(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return Keras' class and its arguments for the config of a multi-head attention of heed.

    A StockFormError names the options that Keras' layers do not have.
    """
    options = dict(config)
    beyond = [name for name, default in _BEYOND.items() if options.pop(name) != default]
    beyond += [name for name in ("key_dim", "value_dim") if not isinstance(options[name], int)]
    grouped = options["num_key_value_heads"] != options["num_heads"]
    if grouped:
        defaults = {"value_dim": options["key_dim"], "output_shape": None, "attention_axes": None}
        beyond += [name for name, default in defaults.items() if options.pop(name) != default]
    else:
        del options["num_key_value_heads"]
    name = "GroupQueryAttention" if grouped else "MultiHeadAttention"
    if grouped:
        names = {ours: stock for stock, ours in GROUPED.items()}
        options = {names.get(option, option): value for option, value in options.items()}
    known = {*inspect.signature(getattr(keras.layers, name)).parameters, *_COMMON}
    # An older Keras knows fewer.
    beyond += [option for option in set(options) - known if options.pop(option)]
    if beyond:
        raise StockFormError(", ".join(beyond))
    return name, options


def is_from_heed(layer: Any) -> bool:
    """Return whether loading this layer needs heed."""
    return type(layer).__module__.split(".")[0] == "heed"


def needs_several_layers(model: keras.Model) -> bool:
    """Return whether a model has layers of heed, or is one, that no single layer of Keras replaces."""
    layers = (layer for layer in (model, *walk(model)) if is_from_heed(layer))
    return any(
        type(layer) is not MultiHeadAttention and type(layer) not in SAME for layer in layers
    )


def walk(model: Any) -> list[Any]:
    """Return the layers of a Functional or Sequential model and of its nested models; none for other models."""
    found = []
    for layer in model.layers if _has_graph(model) else ():
        found += [layer, *walk(layer)]
    return found


def _has_graph(model: Any) -> bool:
    return isinstance(model, keras.Sequential) or type(model).__name__ == "Functional"


def _no_form(layer: Any) -> str:
    return f"no form in Keras' layers: {type(layer).__name__}"


def stock_copy(model: keras.Model) -> keras.Model:
    """Return a model of Keras' layers that computes the same, with the same weights.

    A ValueError gives the reason for each layer that has no form.
    """
    copy = StockCopy()
    if _has_graph(model):
        made = copy.model(model)
    elif type(model) in INPUTS:
        if not model.built:
            model.build()
        inputs = INPUTS[type(model)]()
        made = keras.Model(inputs, copy.call(model, inputs), name=model.name)
    else:
        copy.reasons[model.name] = _no_form(model)
    if copy.reasons:
        listed = "; ".join(f"layer {name!r} with {why}" for name, why in copy.reasons.items())
        raise ValueError(
            f"`model` must not use options that Keras' layers lack. Received: {listed}"
        )
    copy.set_weights()
    if model.compiled:  # with the weights that are trainable now
        made.compile_from_config(model.get_compile_config())
    return made


class StockCopy:
    """A copy in progress: the stock layers so far, the sources of their weights, and the errors."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._made: dict[Any, Any] = {}
        self._kept: list[Any] = []  # keeps ids unique
        self._depth = 0  # of nested models
        self._before = ""  # the prefix of names
        self._weights: list[tuple[Any, Callable[[], Sequence[Any]]]] = []

    def set_weights(self) -> None:
        """Copy weights to all stock layers from the layers that they replace."""
        for layer, weights in self._weights:
            layer.set_weights(weights())
            if not layer.trainable:
                # For its parts, made since, too: Keras ignores a value that is already set.
                layer.trainable = True
                layer.trainable = False

    def model(self, model: keras.Model) -> keras.Model:
        """Return the copy of a Functional or Sequential model."""
        self._depth += 1
        try:
            if not isinstance(model, keras.Sequential):
                return keras.models.clone_model(
                    model, clone_function=lambda layer: layer, call_function=self.call
                )
            first = model.inputs[0]
            inputs = x = keras.Input(batch_shape=first.shape, dtype=first.dtype, name=first.name)
            for layer in model.layers:
                x = self.call(layer, x)
            return keras.Model(inputs, x, name=model.name)
        finally:
            self._depth -= 1

    def call(self, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply the stock form of a layer to symbolic tensors."""
        try:
            if not is_from_heed(layer):
                return self._copy_foreign(layer, args)(*args, **kwargs)
            return self.form(layer, *args, **kwargs)
        except StockFormError as reason:
            self.reasons.setdefault(layer.name, str(reason))
        return layer(*args, **kwargs)  # goes on, to find the errors of later layers

    def form(self, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply the form of a layer of heed; StockFormError if it has none."""
        if type(layer) not in FORMS:
            raise StockFormError(_no_form(layer))
        return FORMS[type(layer)](self, layer, *args, **kwargs)

    def _copy_foreign(self, layer: Any, args: Any) -> Any:
        """Copy a layer or operation that is not heed's."""
        masked = any(implicit_mask(x) is not None for x in keras.tree.flatten(args))
        if masked and (lossy := [x.name for x in walk(layer) if isinstance(x, _WITHOUT_MASK)]):
            raise StockFormError(
                f"{', '.join(lossy)}, whose stock forms lose the Keras mask of their inputs"
            )

        def make() -> Any:
            if _has_graph(layer):
                return self.model(layer)
            made = type(layer).from_config(layer.get_config())
            if isinstance(layer, keras.layers.Layer) and layer.weights:
                self._weights.append((made, layer.get_weights))
            return made

        return self.make_once(layer, make)

    @contextlib.contextmanager
    def prefix_names(self, name: str) -> Iterator[None]:
        """Prefix the names of layers made inside the block."""
        before, self._before = self._before, f"{self._before}{name}_"
        try:
            yield
        finally:
            self._before = before

    def make_once(self, key: Any, make: Callable[[], Any], part: str = "") -> Any:
        """Return the result of `make`, one for each key and part: a layer that is called again stays the same."""
        place = (id(key), part)
        if place not in self._made:
            self._kept.append(key)
            self._made[place] = make()
        return self._made[place]

    def part(self, layer: Any, within: Any = None, name: str = "") -> Any:
        """Return the stock layer of a layer of heed, which may be a part of another."""

        def make() -> Any:
            config = layer.get_config()
            if isinstance(layer, MultiHeadAttention):
                if within is not None and config["num_key_value_heads"] != config["num_heads"]:
                    config["output_shape"] = None  # it is the width of the query, as always there
                kind, config = stock_attention(config)
            else:
                kind = SAME[type(layer)]
            owner = "" if within is None else f"{within.name}_"
            config["name"] = f"{self._before}{owner}{name or layer.name}"
            made = getattr(keras.layers, kind).from_config(config)
            if isinstance(layer, RMSNormalization):
                made.supports_masking = True  # it does, and warns that it does not
            if not isinstance(layer, Dropout):
                self._weights.append((made, layer.get_weights))
            return made

        return self.make_once(layer, make)

    def layer(self, within: Any, name: str, make: Callable[..., Any], **options: Any) -> Any:
        """Return a stock layer that a form needs in addition to the parts of its layer."""
        whole = self._before + (f"{within.name}_{name}" if name else within.name)
        options |= {"dtype": within.dtype_policy, "trainable": within.trainable}
        return self.make_once(within, lambda: make(name=whole, **options), name or "itself")

    def keep_mask(self, x: Any, result: Any) -> Any:
        """Return the result with the mask that `x` carries, which Keras' own layers and operations drop.

        Layers of this model receive it; those of an outer model do not.
        """
        if (mask := implicit_mask(x)) is not None:
            if self._depth > 1:
                raise StockFormError(
                    "a Keras mask, which its stock form loses within a nested model"
                )
            carry(result, mask)
        return result

    def normalize(self, x: Any, norm: Any, within: Any = None) -> Any:
        """Normalise a tensor."""
        normal = self.part(norm, within)(x)
        return self.keep_mask(x, normal) if isinstance(norm, _WITHOUT_MASK) else normal

    def with_weights(self, layer: Any, weights: Callable[[], Sequence[Any]]) -> Any:
        """Register the weights of a stock layer; return the layer."""
        if all(layer is not one for one, _ in self._weights):
            self._weights.append((layer, weights))
        return layer

    def drop(self, x: Any, dropout: Any, within: Any, training: bool | None, name: str = "") -> Any:
        """Apply a dropout, if its rate is not 0."""
        return self.part(dropout, within, name)(x, training=training) if dropout.rate else x


def _same(copy: StockCopy, layer: Any, *args: Any, **kwargs: Any) -> Any:
    return copy.part(layer)(*args, **kwargs)


FORMS.update(dict.fromkeys(SAME, _same))


@stock_form(RMSNormalization)
def _rms_normalization(copy: StockCopy, layer: Any, inputs: Any) -> Any:
    return copy.normalize(inputs, layer)


@stock_form(MultiHeadAttention)
def _attention(copy: StockCopy, layer: Any, *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(layer.call).bind(*args, **kwargs).arguments
    known = inspect.signature(keras.layers.MultiHeadAttention.call).parameters
    _refuse({name: value for name, value in given.items() if name not in known})
    _check_mask(given.get("attention_mask"))
    _check_scores(given.get("return_attention_scores", False))
    for name in ("query", "value", "key"):
        masks = [given.get(f"{name}_mask"), implicit_mask(given.get(name))]
        if masks := [mask for mask in masks if mask is not None]:
            given[f"{name}_mask"] = _both(masks)
    return copy.part(layer)(**given)


def _both(masks: Sequence[Any]) -> Any:
    masks = [ops.cast(mask, "bool") for mask in masks]
    return masks[0] if len(masks) == 1 else ops.logical_and(*masks)


def _refuse(given: Mapping[str, Any]) -> None:
    """Raise a StockFormError if one of these arguments of a call is neither None nor False."""
    if named := [name for name, value in given.items() if value is not None and value is not False]:
        raise StockFormError(f"{', '.join(named)} in its call")


def _check_mask(mask: Any) -> None:
    if isinstance(mask, Mask):
        raise StockFormError("attention_mask, a heed.Mask instead of a tensor")


def _check_scores(request: Any) -> None:
    if not isinstance(request, bool):
        raise StockFormError(f"return_attention_scores={request!r}")


def attend(
    copy: StockCopy,
    attention: Any,
    within: Any,
    query: Any,
    value: Any,
    positions: Any,
    attention_mask: Any,
    **arguments: Any,
) -> Any:
    """Apply an attention that is a part of a layer.

    `positions` (B, S), True = a real position of the value, or None, hold in addition to the mask that the value
    carries; `attention_mask` says which scores count, or is None.
    """
    _check_mask(attention_mask)
    _check_scores(arguments["return_attention_scores"])
    masks = []
    each_head = attention_mask is not None and len(attention_mask.shape) == 4
    if attention_mask is not None:
        masks.append(attention_mask)
    if positions is not None:
        # Over (B, 1, S), or over (B, 1, 1, S).
        over = ops.expand_dims(positions, 1)
        masks.append(ops.expand_dims(over, 1) if each_head else over)
    carried = {"query_mask": implicit_mask(query), "value_mask": implicit_mask(value)}
    if each_head and any(mask is not None for mask in carried.values()):
        raise StockFormError("an attention_mask for each head where inputs carry a Keras mask")
    if masks:
        arguments["attention_mask"] = _both(masks)
    arguments |= {name: mask for name, mask in carried.items() if mask is not None}
    return copy.part(attention, within)(query, value, **arguments)


def _step(
    copy: StockCopy,
    layer: Any,
    x: Any,
    part: Callable[[Any], Any],
    norm: Any,
    dropout: Any,
    training: bool | None,
    read: Any = None,
) -> tuple[Any, ...]:
    """Apply a part of a Transformer layer, which reads `read` or x, with its residual connection and normalisation."""

    def normalize_by(norm: Any) -> Callable[[Any], Any] | None:
        return None if norm is None else lambda y: copy.normalize(y, norm, layer)

    def add(x: Any, change: Any) -> Any:
        change = copy.drop(change, dropout, layer, training)
        name = f"{norm.name.removesuffix('_norm')}_add"
        return copy.layer(layer, name, keras.layers.Add)([x, change])

    norms = normalize_by(norm), normalize_by(layer.post_norm(norm))
    return residual_step(x, x if read is None else read, part, *norms, add, layer.norm_first)


def _feed_forward_step(
    copy: StockCopy, layer: Any, x: Any, inputs: Any, training: bool | None
) -> Any:
    def part(x: Any) -> Any:
        return _feed_forward(copy, layer.feed_forward, x, training, f"{layer.name}_")

    norm, dropout = layer.feed_forward_norm, layer.feed_forward_dropout
    read = inputs if layer.parallel else x
    return _step(copy, layer, x, part, norm, dropout, training, read)[0]


def call_arguments(layer: Any, args: Any, kwargs: Any, *beyond: str) -> dict[str, Any]:
    """Return the arguments of a call by name, with defaults; StockFormError for those that its form does not take."""
    given = bind_call(layer, args, kwargs)
    beyond = (*beyond, "position_bias", "alibi_slopes", "rotary_positions", "cache")
    _refuse({name: given[name] for name in beyond if name in given})
    return given


@stock_form(TransformerEncoderLayer)
def _encoder_layer(copy: StockCopy, layer: Any, *args: Any, **kwargs: Any) -> Any:
    given = call_arguments(layer, args, kwargs)
    names = ("use_causal_mask", "return_attention_scores", "training")
    arguments = {name: given[name] for name in names}

    def part(x: Any) -> Any:
        masks = (given["mask"], given["attention_mask"])
        return attend(copy, layer.attention, layer, x, x, *masks, **arguments)

    norm, dropout, training = layer.attention_norm, layer.attention_dropout_layer, given["training"]
    x, *scores = _step(copy, layer, given["inputs"], part, norm, dropout, training)
    return pack_outputs(_feed_forward_step(copy, layer, x, given["inputs"], training), *scores)


@stock_form(TransformerDecoderLayer)
def _decoder_layer(copy: StockCopy, layer: Any, *args: Any, **kwargs: Any) -> Any:
    given = call_arguments(layer, args, kwargs)
    arguments = {name: given[name] for name in ("return_attention_scores", "training")}
    training = given["training"]

    def to_itself(x: Any) -> Any:
        causal = {**arguments, "use_causal_mask": given["use_causal_mask"]}
        masks = (given["inputs_mask"], given["attention_mask"])
        return attend(copy, layer.self_attention, layer, x, x, *masks, **causal)

    def to_encoded(x: Any) -> Any:
        masks = (given["encoded_mask"], given["cross_attention_mask"])
        return attend(
            copy, layer.encoded_attention, layer, x, given["encoded"], *masks, **arguments
        )

    norm, dropout = layer.self_attention_norm, layer.self_attention_dropout
    x, *scores = _step(copy, layer, given["inputs"], to_itself, norm, dropout, training)
    found: dict[str, Any] | None = {"self": scores[0]} if scores else None
    if layer.cross_attention:
        norm, dropout = layer.encoded_attention_norm, layer.encoded_attention_dropout
        x, *scores = _step(copy, layer, x, to_encoded, norm, dropout, training)
        if found is not None:
            found["cross"] = scores[0]
    return pack_outputs(_feed_forward_step(copy, layer, x, given["inputs"], training), found)


@stock_form(FeedForward)
def _feed_forward(
    copy: StockCopy, layer: Any, inputs: Any, training: bool | None = None, before: str = ""
) -> Any:
    # What stock layers take from a layer that is a part of another, with the name of both.
    both = types.SimpleNamespace(
        name=f"{before}{layer.name}", dtype_policy=layer.dtype_policy, trainable=layer.trainable
    )
    within = copy.make_once(layer, lambda: both, "name")
    hidden = copy.part(layer.hidden_dense, within)(inputs)
    if layer.up_dense is not None:
        up = copy.part(layer.up_dense, within)(inputs)
        hidden = copy.layer(within, "gated", keras.layers.Multiply)([hidden, up])
    hidden = copy.drop(hidden, layer.dropout_layer, within, training, "hidden_dropout")
    return copy.part(layer.output_dense, within)(hidden)


@stock_form(TokenEmbedding)
def _token_embedding(copy: StockCopy, layer: Any, inputs: Any) -> Any:
    config = layer.get_config()
    options = {name: value for name, value in config.items() if name.startswith("embeddings_")}
    options |= {"input_dim": layer.vocabulary_size, "output_dim": layer.width}
    embedding = copy.layer(layer, "", keras.layers.Embedding, mask_zero=layer.mask_zero, **options)
    x = copy.with_weights(embedding, layer.get_weights)(inputs)
    if not layer.scale:
        return x
    return copy.layer(layer, "scale", keras.layers.Rescaling, scale=layer.width**0.5)(x)


def _positions(x: Any, start_index: Any) -> Any:
    """Return (B, T, 1) float32: 0, 1, ... from the start on, whatever T is."""
    ones = ops.ones_like(ops.max(x, axis=-1, keepdims=True), dtype="float32")
    return ops.cumsum(ones, axis=1) + (ops.cast(start_index, "float32") - 1.0)


@stock_form(SinusoidalPositions)
def _sinusoidal(copy: StockCopy, layer: Any, inputs: Any, start_index: Any = 0) -> Any:
    width = inputs.shape[-1]
    pairs = (width + 1) // 2
    # Those of `heed.ops.sinusoidal_positions`, each twice: for a sine and for a cosine.
    slower = -2.0 / width * math.log(layer.max_wavelength)
    frequencies = ops.convert_to_numpy(ops.exp(ops.arange(pairs, dtype="float32") * slower))
    sines = np.arange(width) % 2 == 0
    angles = _positions(inputs, start_index) * np.repeat(frequencies, 2)[:width]
    table = ops.sin(angles) * sines.astype("float32") + ops.cos(angles) * (~sines).astype("float32")
    return _added(copy, inputs, table)


@stock_form(LearnedPositions)
def _learned(copy: StockCopy, layer: Any, inputs: Any, start_index: Any = 0) -> Any:
    sizes = {"input_dim": layer.max_length, "output_dim": inputs.shape[-1]}
    embedding = copy.layer(layer, "", keras.layers.Embedding, **sizes)
    places = ops.cast(ops.squeeze(_positions(inputs, start_index), -1), "int32")
    return _added(copy, inputs, copy.with_weights(embedding, layer.get_weights)(places))


def _added(copy: StockCopy, x: Any, table: Any) -> Any:
    """Return the sum, with the mask of `x`."""
    return copy.keep_mask(x, x + ops.cast(table, x.dtype))
