"""heed's multi-head attention in the place of Keras' in a whole model, and Keras' layers in that of heed's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from heed.layers.multi_head_attention import MultiHeadAttention
from heed.layers.stock_forms import (
    GROUPED,
    SAME,
    StockFormError,
    several,
    stock_attention,
    stock_copy,
)

# Of a layer: module, class, registered name, and arguments.
_Layer = tuple[str, str, str | None, dict[str, Any]]
_OURS = "heed>MultiHeadAttention"
_STOCK = ("MultiHeadAttention", "GroupQueryAttention", "GroupedQueryAttention")
# heed's layers that are Keras' but for how they compute, by the name in their configs.
_SAME = {f"heed>{cls.__name__}": name for cls, name in SAME.items()}


def replace_attention(
    model: keras.Model, by: str = "heed", custom_objects: Mapping[str, Any] | None = None
) -> keras.Model:
    """A copy of a model with heed's multi-head attention in the place of Keras', or with Keras' layers alone.

    Layers that the model's own config names are replaced, also inside of nested models: those of Functional and
    Sequential models. Others, such as KerasHub's, make their attention themselves: for them there is
    `heed.accelerate`. Weights are copied.

    What Keras has no layer for becomes several of its layers: an encoder layer "encoder_0" becomes
    "encoder_0_attention_norm", "encoder_0_attention", "encoder_0_attention_add" and so on, with the same masks. These
    are the encoder, decoder and feed-forward layers, token embeddings, sinusoidal and learned positions, and the models
    `TransformerEncoder`, `Transformer` and `LanguageModel` (without a cache; a tied output layer gets a copy of the
    table). Then the result is a Functional model, and its optimizer begins anew; otherwise its state is copied.

    Where a query sees no key, as at padding, Keras' attention takes a mean of all values and heed's gives 0: outputs
    are equal at the other places. Keras' losses do not see the mask of a model's output behind positions.

    Args:
        model: built, and made of what Keras can serialize; for instance from `keras.saving.load_model`.
        by: "heed": `keras.layers.MultiHeadAttention` and `GroupQueryAttention` become
            `heed.layers.MultiHeadAttention`. "keras": the other way round, and all other layers of heed too, for files
            that load without heed.
        custom_objects: as for `keras.saving.load_model`.

    Returns: another model. Save it to a `.keras` file like any.

    Raises:
        ValueError: if `by` is something else, if there is no such layer, or if layers go beyond what Keras' can do:
            each is named with its reason.

    >>> import keras, numpy as np
    >>> x = keras.Input((None, 8))
    >>> stock = keras.Model(x, keras.layers.MultiHeadAttention(2, 4)(x, x))
    >>> ours = replace_attention(stock)
    >>> type(ours.layers[1]).__module__.startswith("heed")
    True
    >>> states = np.random.default_rng(0).normal(size=(1, 5, 8)).astype("float32")
    >>> bool(np.allclose(ours(states), stock(states), atol=1e-5))
    True
    >>> from heed.layers import TransformerEncoderLayer
    >>> ours = keras.Model(x, TransformerEncoderLayer(2, 16, name="layer")(x))
    >>> stock = replace_attention(ours, by="keras")
    >>> [layer.name for layer in stock.layers][1:4]
    ['layer_attention_norm', 'layer_attention', 'layer_attention_add']
    >>> bool(np.allclose(ours(states), stock(states), atol=1e-5))
    True
    """
    if by not in ("heed", "keras"):
        raise ValueError(f'`by` must be "heed" or "keras". Received: by={by!r}')
    if by == "keras" and several(model):
        return stock_copy(model)
    found: list[str] = []
    config = _walk(keras.saving.serialize_keras_object(model), by, found)
    if not found:
        raise ValueError(
            "`model` must have multi-head attention layers of "
            f"{'Keras' if by == 'heed' else 'heed'} in its config. Received: a model without, {model.name!r}"
        )
    made = keras.saving.deserialize_keras_object(config, custom_objects, safe_mode=False)
    made.set_weights(model.get_weights())
    if getattr(model, "optimizer", None) is not None and made.optimizer.built:
        for ours, theirs in zip(made.optimizer.variables, model.optimizer.variables, strict=True):
            ours.assign(theirs)
    return made


def from_keras(layer: keras.layers.Layer) -> MultiHeadAttention:
    """Heed's multi-head attention with the arguments and, if it is built, the weights of one of Keras.

    Args:
        layer: a `keras.layers.MultiHeadAttention` or `GroupQueryAttention`. LoRA weights come merged.

    Raises:
        TypeError: for another layer.
        ValueError: for a layer that has been quantised.

    >>> import keras, numpy as np
    >>> stock = keras.layers.GroupQueryAttention(head_dim=4, num_query_heads=4, num_key_value_heads=2)
    >>> x = np.random.default_rng(0).normal(size=(1, 5, 8)).astype("float32")
    >>> expected = stock(x, x)
    >>> bool(np.allclose(from_keras(stock)(x, x), expected, atol=1e-5))
    True
    """
    stock = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
    if not isinstance(layer, stock):
        raise TypeError(
            "`layer` must be a keras.layers.MultiHeadAttention or GroupQueryAttention. "
            f"Received: layer={layer!r}"
        )
    config = _from_grouped(layer.get_config())
    # Keras keeps this one out of the config.
    config["flash_attention"] = getattr(layer, "_flash_attention", None) or None
    names = ("query", "key", "gate", "value", "output")
    found = {name: getattr(layer, f"_{name}_dense", None) for name in names}
    parts = {name: part for name, part in found.items() if part is not None}
    if any(getattr(part, "quantization_mode", None) for part in parts.values()):
        raise ValueError(
            "`layer` must not be quantised: convert it first, then quantise the result. "
            f"Received: layer={layer.name}"
        )
    made = MultiHeadAttention.from_config(config)
    if layer.built:
        # The shapes of its inputs, but for batch and lengths.
        free = (None,) * (len(parts["query"].equation.split(",")[0]) - 1)
        made.build(*((*free, parts[name].kernel.shape[0]) for name in ("query", "value", "key")))
        for name, part in parts.items():
            weights = [part.kernel] if part.bias is None else [part.kernel, part.bias]
            arrays = [keras.ops.convert_to_numpy(x) for x in weights]
            getattr(made, f"_{name}_dense").set_weights(arrays)
    return made


def _from_grouped(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of either of Keras' classes with the names of `MultiHeadAttention`."""
    return {GROUPED.get(name, name): value for name, value in config.items()}


def _walk(config: Any, by: str, found: list[str]) -> Any:
    """The config with its layers replaced; notes their names."""
    if isinstance(config, list | tuple):
        return type(config)(_walk(part, by, found) for part in config)
    if not isinstance(config, dict):
        return config
    config = {name: _walk(part, by, found) for name, part in config.items()}
    replace = _into_heed if by == "heed" else _into_keras
    replaced = replace(config)
    if replaced is None:
        return config
    found.append(config["config"].get("name", ""))
    module, name, registered, options = replaced
    layer = {"module": module, "class_name": name, "registered_name": registered}
    return {**config, **layer, "config": options}


def _into_heed(config: dict[str, Any]) -> _Layer | None:
    if config.get("module") != "keras.layers" or config.get("class_name") not in _STOCK:
        return None
    return "heed.layers", "MultiHeadAttention", _OURS, _from_grouped(config["config"])


def _into_keras(config: dict[str, Any]) -> _Layer | None:
    registered = config.get("registered_name")
    if registered in _SAME:
        return "keras.layers", _SAME[registered], None, config["config"]
    if registered != _OURS:
        return None
    options = config["config"]
    try:
        name, stock = stock_attention(options)
    except StockFormError as beyond:
        raise ValueError(
            f"`model` must not go beyond Keras' layers where they take the place of heed's. Received: layer "
            f"{options['name']!r} with {beyond}"
        ) from None
    return "keras.layers", name, None, stock
