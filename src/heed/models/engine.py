"""Decoding by the engine: the whole loop as one op, where there is one that can."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from heed.layers import (
    MultiHeadAttention,
    TokenEmbedding,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from heed.models._stack import Stack
from heed.models.decoder import TransformerDecoder
from heed.models.encoder import TransformerEncoder
from heed.models.transformer import Transformer
from heed.ops import rotary_embedding
from heed.ops.backends import current
from heed.ops.backends.decoder import (
    ACTIVATIONS,
    MOST_BEAMS,
    DecoderLayer,
    DecoderStack,
    Dense,
    Norm,
    Positions,
    Search,
)
from heed.ops.dispatch import choice
from heed.ops.observe import watched

# Options of `generate` that a search of the engine has too.
_SEARCH = ("method", "temperature", "top_k", "top_p", "beam_size", "length_penalty")

_LAYERS = {
    TransformerDecoder: TransformerDecoderLayer,
    TransformerEncoder: TransformerEncoderLayer,
}


def unsupported_reasons(model: Transformer, options: dict[str, Any]) -> list[str]:
    """Why the engine does not decode this model with these options of `generate`; empty if it does."""
    own = [*current().DECODER.unsupported_reasons(), *_of_call(options)]
    return [*own, *_of_stack(model.decoder, TransformerDecoder)]


def _of_call(options: dict[str, Any]) -> Iterator[str]:
    if choice() not in ("auto", "native"):
        yield f'heed.set_implementation chose "{choice()}"'
    if watched():
        yield "somebody looks at each attention"
    if options["method"] == "beam" and options["beam_size"] > MOST_BEAMS:
        yield f"a beam of {options['beam_size']} is wider than the {MOST_BEAMS} that the engine takes"
    if not options["use_cache"]:
        yield "without a cache each step is a run of the whole decoder"


def _of_stack(stack: Stack, kind: type) -> Iterator[str]:
    """Why the engine does not run a decoder or an encoder: what a person may have changed in it, above all."""
    expected: list[tuple[Any, type]] = [(stack, kind), (stack.embedding.tokens, TokenEmbedding)]
    layer_kind = _LAYERS[kind]
    for block in stack.blocks:
        expected += [(block, layer_kind)]
        expected += [(attention, MultiHeadAttention) for attention in _attentions(block)]
    for part, wanted in expected:
        if type(part) is not wanted:
            yield f"{part.name} is a {type(part).__name__}, not a heed {wanted.__name__}"
            return
    for layer in stack._flatten_layers():
        if layer.compute_dtype != "float32" or layer.variable_dtype != "float32":
            yield f"{layer.name} computes in {layer.dtype_policy.name}, the engine in float32"
            return
        if getattr(layer, "quantization_mode", None):
            yield f"{layer.name} is quantised to {layer.quantization_mode}"
            return
        if getattr(layer, "lora_enabled", False):
            yield f"{layer.name} has LoRA weights"
            return
    activation = _activation(stack)
    if activation not in ACTIVATIONS:
        yield f"the engine has no activation {activation!r}, only {', '.join(ACTIVATIONS)}"


def _attentions(block: Any) -> list[Any]:
    """Of a layer: the attention to its own sequence, and of a decoder's layer that to the other."""
    if hasattr(block, "attention"):
        return [block.attention]
    return [block.self_attention, block.encoded_attention]


def _activation(stack: Stack) -> str:
    activation = keras.activations.get(stack.config.activation)
    return getattr(activation, "__name__", str(activation))


def decode(model: Transformer, inputs: dict[str, Any], options: dict[str, Any]) -> Any:
    """The decoding itself: one op, after the encoder in the graph where the engine does not run that too."""
    config, length = model.config, options["max_length"]
    own = {name: options[name] for name in _SEARCH if name in options}
    if options["method"] == "sample" and options["top_k"] == 1:
        own = {"method": "greedy"}
    search = Search(
        length, config.pad_id, config.start_id, config.end_id, uniform=inputs.get("uniform"), **own
    )
    source = inputs["source"]
    mask = model.source_mask(source)
    stack, positions = (
        _decoder(model.decoder),
        _positions(model.decoder, length, length - 1, length),
    )
    encoder, encoded, source_positions = None, None, Positions()
    if type(model) is Transformer and not [*_of_stack(model.encoder, TransformerEncoder)]:
        room = ops.shape(source)[1]
        encoder = _encoder(model.encoder)
        source_positions = _positions(model.encoder, room, room, 2 * room)
    else:
        encoded = ops.cast(model.encode(source, training=False), "float32")
    stack = dataclasses.replace(stack, encoder=encoder, weights=options["weights"])
    return current().DECODER.decode(
        stack, source, mask, encoded, positions, source_positions, search
    )


def _stack(stack: Stack, logits: Dense | None, layers: tuple[DecoderLayer, ...]) -> DecoderStack:
    config, tokens = stack.config, stack.embedding.tokens
    return DecoderStack(
        heads=config.num_heads,
        kv_heads=config.num_key_value_heads or config.num_heads,
        head_dim=config.head_dim,
        value_dim=config.head_dim,
        norm_first=config.norm_first,
        activation=_activation(stack),
        epsilon=stack.blocks[0].norm_epsilon,
        embedding=tokens.embeddings,
        embedding_scale=tokens.width**0.5 if tokens.scale else 1.0,
        final_norm=_norm(stack.final_norm),
        logits=logits,
        layers=layers,
    )


def _decoder(decoder: TransformerDecoder) -> DecoderStack:
    if decoder.output_layer is None:
        logits = Dense(decoder.embedding.tokens.embeddings, transposed=True)
    else:
        logits = _dense(decoder.output_layer)
    return _stack(decoder, logits, tuple(map(_decoder_layer, decoder.blocks)))


def _decoder_layer(block: TransformerDecoderLayer) -> DecoderLayer:
    return DecoderLayer(
        **_layer(block, block.self_attention, block.self_attention_norm),
        **_projections(block.encoded_attention, "cross_"),
        cross_norm=_norm(block.encoded_attention_norm),
    )


def _encoder(encoder: TransformerEncoder) -> DecoderStack:
    layers = (_layer(block, block.attention, block.attention_norm) for block in encoder.blocks)
    return _stack(encoder, None, tuple(DecoderLayer(**parts) for parts in layers))


def _layer(block: Any, attention: MultiHeadAttention, norm: Any) -> dict[str, Any]:
    """What layers of encoders and decoders share."""
    return {
        **_projections(attention),
        "self_norm": _norm(norm),
        "feed_forward_norm": _norm(block.feed_forward_norm),
        "hidden": _dense(block.feed_forward.hidden_dense),
        "back": _dense(block.feed_forward.output_dense),
    }


def _projections(attention: MultiHeadAttention, prefix: str = "") -> dict[str, Any]:
    names = ("query", "key", "value", "output")
    return {prefix + name: _dense(getattr(attention, f"{name}_dense")) for name in names}


def _dense(layer: Any) -> Dense:
    return Dense(layer.kernel, layer.bias)


def _norm(layer: Any) -> Any:
    return None if layer is None else Norm(layer.gamma, layer.beta)


def _positions(stack: Stack, length: Any, start: Any, room: Any) -> Positions:
    """What the positions 0 .. length - 1 add to tokens, turn queries and keys by, or add to scores.

    The last is what a query at position `start` is told of keys 0 .. room - 1: they stand for all distances.
    """
    config, embedding = stack.config, stack.embedding
    table = rotation = bias = None
    if embedding.positions is not None:
        table = embedding.positions(ops.zeros((1, length, config.width)))[0]
    arguments = embedding.attention_arguments(1, room, start)
    if "rotary_positions" in arguments:
        # Turned by an angle, (1, 0) becomes its cosine and its sine.
        ones = ops.ones((1, length, 1, config.head_dim // 2))
        pairs = ops.concatenate([ones, ops.zeros_like(ones)], axis=-1)
        rotation = rotary_embedding(pairs)[0, :, 0]
    if "alibi_slopes" in arguments:
        distances = ops.abs(ops.arange(room, dtype="int32") - start)
        bias = -ops.expand_dims(arguments["alibi_slopes"], 1) * ops.cast(distances, "float32")
    if "position_bias" in arguments:
        bias = arguments["position_bias"][0, :, 0]
    return Positions(table, rotation, bias)
