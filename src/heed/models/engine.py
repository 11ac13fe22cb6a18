"""Decoding by the engine: the whole loop as one op, where there is one that can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from heed.layers import MultiHeadAttention, TokenEmbedding, TransformerDecoderLayer
from heed.models.decoder import TransformerDecoder
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


def unsupported_reasons(model: Transformer, options: dict[str, Any]) -> list[str]:
    """Why the engine does not decode this model with these options of `generate`; empty if it does."""
    return [*current().DECODER.unsupported_reasons(), *_of_call(options), *_of_model(model)]


def _of_call(options: dict[str, Any]) -> Iterator[str]:
    if choice() not in ("auto", "native"):
        yield f'heed.set_implementation chose "{choice()}"'
    if watched():
        yield "somebody looks at each attention"
    if options["method"] == "beam" and options["beam_size"] > MOST_BEAMS:
        yield f"a beam of {options['beam_size']} is wider than the {MOST_BEAMS} that the engine takes"
    if not options["use_cache"]:
        yield "without a cache each step is a run of the whole decoder"


def _of_model(model: Transformer) -> Iterator[str]:
    """What a person may have changed in a model that heed made."""
    decoder = model.decoder
    expected: list[tuple[Any, type]] = [(decoder, TransformerDecoder)]
    expected += [(decoder.embedding.tokens, TokenEmbedding)]
    for block in decoder.blocks:
        expected += [(block, TransformerDecoderLayer), (block.self_attention, MultiHeadAttention)]
        if decoder.cross_attention:
            expected += [(block.encoded_attention, MultiHeadAttention)]
    for part, kind in expected:
        if type(part) is not kind:
            yield f"{part.name} is a {type(part).__name__}, not a heed {kind.__name__}"
            return
    for layer in decoder._flatten_layers():
        if layer.compute_dtype != "float32" or layer.variable_dtype != "float32":
            yield f"{layer.name} computes in {layer.dtype_policy.name}, the engine in float32"
            return
        if getattr(layer, "quantization_mode", None):
            yield f"{layer.name} is quantised to {layer.quantization_mode}"
            return
        if getattr(layer, "lora_enabled", False):
            yield f"{layer.name} has LoRA weights"
            return
    activation = _activation(decoder)
    if activation not in ACTIVATIONS:
        yield f"the engine has no activation {activation!r}, only {', '.join(ACTIVATIONS)}"


def _activation(decoder: TransformerDecoder) -> str:
    activation = keras.activations.get(decoder.config.activation)
    return getattr(activation, "__name__", str(activation))


def decode(model: Transformer, inputs: dict[str, Any], options: dict[str, Any]) -> Any:
    """The decoding itself: the encoder as operations of the current graph, and then one op."""
    config, length = model.config, options["max_length"]
    own = {name: options[name] for name in _SEARCH if name in options}
    if options["method"] == "sample" and options["top_k"] == 1:
        own = {"method": "greedy"}
    search = Search(
        length, config.pad_id, config.start_id, config.end_id, uniform=inputs.get("uniform"), **own
    )
    source = inputs["source"]
    encoded = model.encode(source, training=False)
    stack, positions = _stack(model.decoder), _positions(model.decoder, length)
    mask = model.source_mask(source)
    return current().DECODER.decode(stack, encoded, mask, positions, search)


def _stack(decoder: TransformerDecoder) -> DecoderStack:
    config, tokens = decoder.config, decoder.embedding.tokens
    if decoder.output_layer is None:
        logits = Dense(tokens.embeddings, transposed=True)
    else:
        logits = _dense(decoder.output_layer)
    return DecoderStack(
        heads=config.num_heads,
        kv_heads=config.num_key_value_heads or config.num_heads,
        head_dim=config.head_dim,
        value_dim=config.head_dim,
        norm_first=config.norm_first,
        activation=_activation(decoder),
        epsilon=decoder.blocks[0].norm_epsilon,
        embedding=tokens.embeddings,
        embedding_scale=tokens.width**0.5 if tokens.scale else 1.0,
        final_norm=_norm(decoder.final_norm),
        logits=logits,
        layers=tuple(map(_layer, decoder.blocks)),
    )


def _layer(block: TransformerDecoderLayer) -> DecoderLayer:
    own, cross = block.self_attention, block.encoded_attention
    return DecoderLayer(
        self_norm=_norm(block.self_attention_norm),
        cross_norm=_norm(block.encoded_attention_norm),
        feed_forward_norm=_norm(block.feed_forward_norm),
        query=_dense(own.query_dense),
        key=_dense(own.key_dense),
        value=_dense(own.value_dense),
        output=_dense(own.output_dense),
        cross_query=_dense(cross.query_dense),
        cross_key=_dense(cross.key_dense),
        cross_value=_dense(cross.value_dense),
        cross_output=_dense(cross.output_dense),
        hidden=_dense(block.feed_forward.hidden_dense),
        back=_dense(block.feed_forward.output_dense),
    )


def _dense(layer: Any) -> Dense:
    return Dense(layer.kernel, layer.bias)


def _norm(layer: Any) -> Any:
    return None if layer is None else Norm(layer.gamma, layer.beta)


def _positions(decoder: TransformerDecoder, length: int) -> Positions:
    """What the positions 0 .. length - 1 add to tokens, turn queries and keys by, or add to scores."""
    config, embedding = decoder.config, decoder.embedding
    table = rotation = bias = None
    if embedding.positions is not None:
        table = embedding.positions(ops.zeros((1, length, config.width)))[0]
    # What the last of them is told says all: the others look as far back at most.
    arguments = embedding.attention_arguments(1, length, length - 1)
    if "rotary_positions" in arguments:
        # Turned by an angle, (1, 0) becomes its cosine and its sine.
        ones = ops.ones((1, length, 1, config.head_dim // 2))
        pairs = ops.concatenate([ones, ops.zeros_like(ones)], axis=-1)
        rotation = rotary_embedding(pairs)[0, :, 0]
    if "alibi_slopes" in arguments:
        distances = ops.arange(length, dtype="float32")
        bias = -ops.expand_dims(arguments["alibi_slopes"], 1) * distances
    if "position_bias" in arguments:
        bias = ops.flip(arguments["position_bias"][0, :, 0], axis=-1)
    return Positions(table, rotation, bias)
