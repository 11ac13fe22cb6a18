"""Replaces Keras' multi-head attention by heed's in a model, and heed's layers by Keras'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from heed.layers._multi_head_attention import MultiHeadAttention
from heed.layers.axes import AttentionAxes
from heed.layers.overrides import (
    MASKS_AND_SOFTMAX,
    find_multi_head_override,
    find_override,
    is_plain,
    option,
)
from heed.layers.stock_forms import (
    GROUPED,
    SAME,
    StockFormError,
    needs_several_layers,
    stock_attention,
    stock_copy,
)
from heed.number_checks import real

# Of a layer: module, class, registered name, and arguments.
_Layer = tuple[str, str, str | None, dict[str, Any]]
_OURS = "heed>MultiHeadAttention"
_STOCK = ("MultiHeadAttention", "GroupQueryAttention", "GroupedQueryAttention")
_PROJECTIONS = ("query", "key", "gate", "value", "output")
_OTHER_WAYS = (
    " Models that make their attention themselves, such as KerasHub's and subclassed ones, and Keras' Attention and "
    "AdditiveAttention run on heed with `heed.accelerate(model)`; an attention by hand calls "
    "`heed.ops.dot_product_attention`"
)
# heed's layers that are Keras' but for how they compute, by the name in their configs.
_SAME = {f"heed>{cls.__name__}": name for cls, name in SAME.items()}


def replace_attention(
    model: keras.Model, by: str = "heed", custom_objects: Mapping[str, Any] | None = None
) -> keras.Model:
    """Copy a model, with heed's multi-head attention instead of Keras', or with Keras' layers only.

    It replaces the layers of Functional and Sequential models, nested ones too. Other models, such as KerasHub's, make
    their attention themselves: use `heed.accelerate` for them. Weights are copied.

    heed's layers that Keras lacks become several of its layers: an encoder layer "encoder_0" becomes
    "encoder_0_attention_norm", "encoder_0_attention", "encoder_0_attention_add" and so on, with the same masks. These
    are the encoder, decoder and feed-forward layers, token embeddings, sinusoidal and learned positions, and the models
    `TransformerEncoder`, `Transformer` and `LanguageModel` (without a cache; a tied output layer gets a copy of the
    table). The result is then a Functional model with a new optimizer; otherwise the optimizer's state is copied.

    Where a query sees no key, as at padding, Keras' attention gives the mean of all values and heed's gives 0. All
    other outputs agree. Keras' losses do not see the mask of a model's output behind positions.

    Args:
        model: a built model that Keras can serialize, for instance from `keras.saving.load_model`.
        by: "heed" replaces `keras.layers.MultiHeadAttention` and `GroupQueryAttention` by
            `heed.layers.MultiHeadAttention`; "keras" replaces all layers of heed, for files that load without heed.
        custom_objects: as for `keras.saving.load_model`.

    Returns: the new model.

    Raises:
        ValueError: if `by` is something else, if there is no such layer, or if layers go beyond Keras': the message
            names each with its reason.

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
    if by == "keras" and needs_several_layers(model):
        return stock_copy(model)
    if by == "heed":
        _check_overrides(model)
    found: list[str] = []
    config = _walk(keras.saving.serialize_keras_object(model), by, found)
    if not found:
        raise ValueError(
            "`model` must have multi-head attention layers of "
            f"{'Keras' if by == 'heed' else 'heed'} in its config. Received: a model without, {model.name!r}."
            + (_OTHER_WAYS if by == "heed" else "")
        )
    made = keras.saving.deserialize_keras_object(config, custom_objects, safe_mode=False)
    made.set_weights(model.get_weights())
    if getattr(model, "optimizer", None) is not None and made.optimizer.built:
        for ours, theirs in zip(made.optimizer.variables, model.optimizer.variables, strict=True):
            ours.assign(theirs)
    return made


def _check_overrides(model: keras.Model) -> None:
    """Raise an error if a layer to replace computes another attention than its config says."""
    for layer in model._flatten_layers():
        stock = type(layer) in (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
        if stock and (reason := _find_override(layer)):
            raise ValueError(
                "`model` must have attention as its config says: a copy would lose the changes of a layer. "
                f"`heed.accelerate(model)` leaves such a layer to Keras. Received: layer {layer.name!r}: {reason}"
            )


def from_keras(layer: keras.layers.Layer) -> MultiHeadAttention:
    """Make a `MultiHeadAttention` from a layer of Keras: its arguments and, if it is built, its weights.

    Args:
        layer: a `keras.layers.MultiHeadAttention` or `GroupQueryAttention`. LoRA weights are merged.

    Raises:
        TypeError: for another layer.
        ValueError: for a layer that has been quantised, or whose methods, projections or scale are not those of its
            class and config.

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
    if reason := _find_override(layer):
        raise ValueError(
            "`layer` must compute the attention of Keras' class: heed's would compute another one. Received: "
            f"layer={layer.name}: {reason}"
        )
    config = _from_grouped(layer.get_config())
    # Keras keeps this one out of the config.
    config["flash_attention"] = getattr(layer, "_flash_attention", None) or None
    found = {name: getattr(layer, f"_{name}_dense", None) for name in _PROJECTIONS}
    parts = {name: part for name, part in found.items() if part is not None}
    if any(getattr(part, "quantization_mode", None) for part in parts.values()):
        raise ValueError(
            "`layer` must not be quantised: convert it first, then quantise the result. "
            f"Received: layer={layer.name}"
        )
    made = MultiHeadAttention.from_config(config)
    if layer.built:
        made.build(*_input_shapes(parts))
        for name, part in parts.items():
            weights = [part.kernel] if part.bias is None else [part.kernel, part.bias]
            arrays = [keras.ops.convert_to_numpy(x) for x in weights]
            ours = getattr(made, f"_{name}_dense")
            ours.set_weights(arrays)
            ours.trainable = part.trainable
    return made


def _find_override(layer: Any) -> str | None:
    """Return why a multi-head attention of Keras computes another attention than its config says, or None."""
    multi, grouped = keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention
    base = multi if isinstance(layer, multi) else grouped
    methods = "_compute_attention", "call"
    if reason := find_override(layer, base, (*methods, *MASKS_AND_SOFTMAX)):
        return reason
    expected = base.from_config(base.get_config(layer))
    scales = (option(x, "inverse_sqrt_key_dim", "inverse_sqrt_head_dim") for x in (layer, expected))
    if len({real(scale) for scale in scales}) > 1:
        return "a scale of its own"
    if not layer.built:
        return None
    if reason := _find_other_projection(layer, expected):
        return reason
    rank = len(layer._query_dense.equation.split(",")[0])
    axes = AttentionAxes(rank, option(layer, "attention_axes"))
    return find_multi_head_override(layer, base, axes, *methods)


def _find_other_projection(layer: Any, expected: Any) -> str | None:
    """Return the projection of a built layer that is not as its config says, as a reason; None if there is none.

    `expected` is an unbuilt layer, made from the config.
    """
    parts = {name: getattr(layer, f"_{name}_dense", None) for name in _PROJECTIONS}
    for name, part in parts.items():
        if part is None and name != "gate":
            return f"no `_{name}_dense`"
        if part is not None and not is_plain(part, keras.layers.EinsumDense):
            return f"a `_{name}_dense` of its own, {type(part).__name__}"
    expected.build(*_input_shapes(parts))
    for name, part in parts.items():
        like = getattr(expected, f"_{name}_dense", None)
        configs = [None if x is None else x.get_config() for x in (part, like)]
        for option_name in (
            "equation",
            "output_shape",
            "activation",
            "bias_axes",
            "activity_regularizer",
        ):
            given, default = (config and config[option_name] for config in configs)
            if given != default:
                if isinstance(given, dict):  # as Keras writes objects, and functions from 3.16 on
                    given = given.get("registered_name") or given.get("class_name")
                return f"a `_{name}_dense` with its own `{option_name}`, {given}"
    return None


def _input_shapes(parts: Mapping[str, Any]) -> list[tuple[int | None, ...]]:
    """Return the shapes of query, value and key, with None for batch and lengths, by their projections."""
    free = (None,) * (len(parts["query"].equation.split(",")[0]) - 1)
    return [(*free, parts[name].kernel.shape[0]) for name in ("query", "value", "key")]


def _from_grouped(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of either of Keras' classes with the names of `MultiHeadAttention`."""
    return {GROUPED.get(name, name): value for name, value in config.items()}


def _walk(config: Any, by: str, found: list[str]) -> Any:
    """Replace the layers of a config; append their names to `found`."""
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
            f"`model` must not use options that Keras' layers lack. Received: layer "
            f"{options['name']!r} with {beyond}"
        ) from None
    return "keras.layers", name, None, stock
