"""The blocks of a Transformer: which of their layers add to the residual stream, and which projects the heads.

All that `heed.inspect` knows of the structure of heed's and KerasHub's blocks is in the two tables of this file. Blocks
of users are recognised by what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras


class _Form(NamedTuple):
    """The attributes of a block whose outputs are added to the stream; of several, the last that a block has."""

    attention: tuple[str, ...]
    feed_forward: tuple[str, ...]
    cross_attention: tuple[str, ...] = ()


_HUB = _Form(("_self_attention_layer",), ("_feedforward_output_dense",))
_GEMMA = _Form(("attention", "post_attention_norm"), ("ffw_linear", "post_ffw_norm"))
# By package and class.
_FORMS = {
    "heed.TransformerEncoderLayer": _Form(("attention",), ("feed_forward",)),
    "heed.TransformerDecoderLayer": _Form(
        ("self_attention",), ("feed_forward",), ("encoded_attention",)
    ),
    "keras_hub.TransformerEncoder": _HUB,
    "keras_hub.TransformerDecoder": _HUB._replace(cross_attention=("_cross_attention_layer",)),
    "keras_hub.LlamaTransformerDecoder": _HUB,
    "keras_hub.GemmaDecoderBlock": _GEMMA,
    "keras_hub.Gemma3DecoderBlock": _GEMMA,
    "keras_hub.ViTEncoderBlock": _Form(("mha",), ("mlp",)),
    "keras_hub.T5TransformerLayer": _Form(
        ("self_attention",), ("output_projector",), ("cross_attention",)
    ),
}
# The attributes under which attention layers keep the projection of their heads: heed, Keras and KerasHub, users.
_PROJECTIONS = (
    *("_output_dense", "output_dense", "output_projector"),
    *("combine_heads", "out_proj", "o_proj", "c_proj", "to_out", "out", "proj", "wo", "dense"),
)
_FEED_FORWARD = ("ffn", "feed", "mlp", "ffw")
_CROSS = ("cross", "encode", "context")


def is_attention(layer: Any) -> bool:
    """Return whether a softmax inside this layer gives attention weights, by the name of a class of it."""
    return _is_named(layer, "attention")


def is_norm(layer: Any) -> bool:
    """Return whether a layer normalises, by the name of its class or of a base class."""
    return _is_named(layer, "norm")


def find_parts(layer: Any) -> Mapping[Any, str] | None:
    """Return the layers of a block that add to the residual stream, with the names of their outputs.

    These are "attention_output", "cross_attention_output" or "feed_forward_output"; None if `layer` is no block.
    """
    for cls in type(layer).__mro__:
        form = _FORMS.get(f"{cls.__module__.partition('.')[0]}.{cls.__name__}")
        if form is not None:
            return _parts_of_form(layer, form)
    if is_attention(layer) or isinstance(layer, keras.Model):
        return None
    return _recognise_parts(layer)


def find_projection(layer: Any) -> Any:
    """Return the layer that projects the heads of an attention layer, or None."""
    known = (getattr(layer, name, None) for name in _PROJECTIONS)
    return next((x for x in known if isinstance(x, keras.Layer)), None)


def _parts_of_form(layer: Any, form: _Form) -> dict[Any, str]:
    parts = {}
    for kind, names in form._asdict().items():
        found = [x for name in names if (x := getattr(layer, name, None)) is not None]
        if found:
            parts[found[-1]] = f"{kind}_output"
    return parts


def _recognise_parts(layer: Any) -> dict[Any, str] | None:
    """Return the parts of a block that somebody else wrote: it has an attention, and a feed-forward layer."""
    children = layer.named_children() if hasattr(layer, "named_children") else ()  # PyTorch
    attributes = {**vars(layer), **dict(children)}
    layers = {name: x for name, x in attributes.items() if isinstance(x, keras.Layer)}
    attention = {name: x for name, x in layers.items() if is_attention(x)}
    others = {
        name: x
        for name, x in layers.items()
        if not (is_attention(x) or is_norm(x) or _is_named(x, "dropout"))
    }
    whole = [
        x
        for name, x in others.items()
        if isinstance(x, keras.Model) or any(word in f"{name} {x.name}" for word in _FEED_FORWARD)
    ]
    products = [x for x in others.values() if _is_named(x, "dense")]
    if not attention or not (whole or products):
        return None
    parts = {}
    for name, x in attention.items():
        cross = any(word in f"{name} {x.name}" for word in _CROSS)
        parts[x] = "cross_attention_output" if cross else "attention_output"
    return parts | {(whole or products)[-1]: "feed_forward_output"}


def _is_named(layer: Any, word: str) -> bool:
    return any(word in cls.__name__.lower() for cls in type(layer).__mro__)
