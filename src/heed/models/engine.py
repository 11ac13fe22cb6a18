"""Decoding by the engine: the whole loop as one op, where there is one that can."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from heed.layers import (
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    RelativePositionBias,
    SinusoidalPositions,
    TokenEmbedding,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from heed.layers.flat_dense import FlatDense, FlatEinsumDense
from heed.layers.normalization import LayerNormalization, RMSNormalization
from heed.models._input import InputEmbedding
from heed.models._stack import Stack
from heed.models.decoder import TransformerDecoder
from heed.models.encoder import TransformerEncoder
from heed.models.language_model import LanguageModel
from heed.models.transformer import Transformer
from heed.ops import rotary_embedding
from heed.ops.backends import current
from heed.ops.backends.decoder import (
    ACTIVATIONS,
    MOST_BEAMS,
    DecoderAttention,
    DecoderLayer,
    DecoderStack,
    Dense,
    Norm,
    Positions,
    Search,
)
from heed.ops.dispatch import allows_native, get_implementation
from heed.ops.observe import is_watched

# Options of `generate` that a search of the engine has too.
_SEARCH = ("method", "temperature", "top_k", "top_p", "beam_size", "length_penalty")

_PROJECTIONS = ("query", "key", "value", "output")

_LAYERS: dict[type, type] = {
    TransformerDecoder: TransformerDecoderLayer,
    TransformerEncoder: TransformerEncoderLayer,
}


def unsupported_reasons(model: Any, options: dict[str, Any]) -> list[str]:
    """Why the engine does not decode this model with these options of `generate`; empty if it does."""
    own = [*current().DECODER.unsupported_reasons(), *_of_call(options)]
    if not isinstance(model, (Transformer, LanguageModel)):
        return [*own, f"{type(model).__name__} is neither a Transformer nor a LanguageModel"]
    own += _of_model(model)
    return [*own, *_of_stack(model.decoder, TransformerDecoder)]


def encoder_reasons(model: Any) -> list[str]:
    """Why the graph encodes the sources of a model that the engine decodes; empty if the engine does that, too."""
    if isinstance(model, LanguageModel):
        return []
    own = [*_of_stack(model.encoder, TransformerEncoder)]
    return (
        own
        if type(model) is Transformer
        else [f"{type(model).__name__} may encode otherwise", *own]
    )


def _of_call(options: dict[str, Any]) -> Iterator[str]:
    if not allows_native():
        yield f'heed.set_implementation chose "{get_implementation()}"'
    if is_watched():
        yield "somebody looks at each attention"
    if options["method"] == "beam" and options["beam_size"] > MOST_BEAMS:
        yield f"a beam of {options['beam_size']} is wider than the {MOST_BEAMS} that the engine takes"
    if options["method"] == "beam" and options["coverage_penalty"]:
        yield "a coverage penalty needs attention weights, which the engine never builds"
    if not options["use_cache"]:
        yield "without a cache each step is a run of the whole decoder"


def _of_model(model: Transformer | LanguageModel) -> Iterator[str]:
    """What a subclass may have changed; what a Transformer encodes may come from anywhere."""
    kind: Any = Transformer if isinstance(model, Transformer) else LanguageModel
    methods = ["make_state", "decode_step", *(["encode_source"] if kind is LanguageModel else [])]
    for name in methods:
        if getattr(type(model), name) is not getattr(kind, name):
            yield f"{type(model).__name__} has a `{name}` of its own"


def _of_stack(stack: Stack, kind: type) -> Iterator[str]:
    """Why the engine does not run a decoder or an encoder: what a person may have changed in it, above all."""
    for part, wanted in _parts(stack, kind):
        if type(part) not in wanted:
            names = " or ".join(x.__name__ for x in wanted)
            yield f"{part.name} is a {type(part).__name__}, not a heed {names}"
            return
    # A list of layers forgets to tell its owner of one that has been put in the place of another.
    for layer in (x for part in (stack, *stack.blocks) for x in part._flatten_layers()):
        if layer.dtype_policy.name == "float32" and not getattr(layer, "lora_enabled", False):
            continue  # nearly always, and quicker to ask
        if layer.compute_dtype != "float32" or layer.variable_dtype != "float32":
            yield f"{layer.name} computes in {layer.dtype_policy.name}, the engine in float32"
            return
        if getattr(layer, "quantization_mode", None):
            yield f"{layer.name} is quantised to {layer.quantization_mode}"
            return
        if getattr(layer, "lora_enabled", False):
            yield f"{layer.name} has LoRA weights"
            return
    output = getattr(stack, "output_layer", None)
    if output is not None and _activation(output) != "linear":
        yield f"{output.name} has an activation, {_activation(output)!r}"
    for block in stack.blocks:
        if reasons := [*_of_block(stack, block)]:
            yield from reasons
            return


def _parts(stack: Stack, kind: type) -> Iterator[tuple[Any, tuple[type, ...]]]:
    """What a stack is made of, outer parts first, and which classes the engine knows there; subclasses may differ."""
    yield stack, (kind,)
    yield stack.embedding, (InputEmbedding,)
    yield stack.embedding.tokens, (TokenEmbedding,)
    if stack.embedding.positions is not None:
        yield stack.embedding.positions, (SinusoidalPositions, LearnedPositions)
    if stack.embedding.bias is not None:
        yield stack.embedding.bias, (RelativePositionBias,)
    norms = [] if stack.final_norm is None else [stack.final_norm]
    dense = [] if getattr(stack, "output_layer", None) is None else [stack.output_layer]
    for block in stack.blocks:
        yield block, (_LAYERS[kind],)
        for attention, norm in _attentions(block):
            yield attention, (MultiHeadAttention,)
            made = [getattr(attention, f"{name}_dense", None) for name in _PROJECTIONS]
            dense += [x for x in made if x is not None]
            norms.append(norm)
        yield block.feed_forward, (FeedForward,)
        dense += [x for x in _feed_forward(block) if x is not None]
        norms.append(block.feed_forward_norm)
    for norm in norms:
        yield norm, (LayerNormalization, RMSNormalization)
    for layer in dense:
        yield layer, (FlatDense, FlatEinsumDense)


def _of_block(stack: Stack, block: Any) -> Iterator[str]:
    """Why the engine does not run one layer of a stack."""
    hidden, up, back = _feed_forward(block)
    activation = _activation(hidden)
    if activation not in ACTIVATIONS:
        yield f"the engine has no activation {activation!r}, only {', '.join(ACTIVATIONS)}"
    for layer in (up, back):
        if layer is not None and _activation(layer) != "linear":
            yield f"{layer.name} of {block.name} has an activation, {_activation(layer)!r}"
    sizes = _sizes(_attentions(stack.blocks[0])[0][0])
    for attention, _ in _attentions(block):
        name = f"{attention.name} of {block.name}"
        if _sizes(attention) != sizes:
            yield f"{name} has other numbers or widths of heads than the first layer"
        if attention.own_widths:
            yield f"{name} has heads of own widths"
        if attention.output_dense is None:
            yield f"{name} has no output projection"
        if attention._position is not None:
            yield f"{name} has a `position` of its own"
    if len(_attentions(block)) > 1 and block.encoded_attention._sliding_window is not None:
        yield f"{block.encoded_attention.name} of {block.name} has a sliding window"


def _attentions(block: Any) -> list[tuple[Any, Any]]:
    """Of a layer: the attention to its own sequence, and of a decoder's layer that to the other; their norms."""
    if hasattr(block, "attention"):
        return [(block.attention, block.attention_norm)]
    own = [(block.self_attention, block.self_attention_norm)]
    if block.cross_attention:
        own.append((block.encoded_attention, block.encoded_attention_norm))
    return own


def _feed_forward(block: Any) -> tuple[Any, Any, Any]:
    """What is activated, what multiplies that or None, and the way back."""
    part = block.feed_forward
    return part.hidden_dense, part.up_dense, part.output_dense


def _sizes(attention: MultiHeadAttention) -> tuple[int, int, int, int]:
    """N, K, H, V."""
    heads = (attention.num_heads, attention.num_key_value_heads)
    return (*heads, attention.key_dim, attention.value_dim)


def _activation(layer: Any) -> str:
    """The name that Keras has for the activation of a layer, or what another one calls itself, in brackets."""
    name = getattr(layer.activation, "__name__", str(layer.activation))
    if layer.activation is None:
        return "linear"
    return name if getattr(keras.activations, name, None) is layer.activation else f"({name})"


def decode(model: Any, inputs: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """The decoding itself: one op, after the encoder in the graph where the engine does not run that too."""
    config, length = model.config, options["max_length"]
    own = {name: options[name] for name in _SEARCH if name in options}
    results, scored = options["num_results"], options["scored"]
    drawn = results if options["method"] == "sample" else 1
    if drawn > 1:  # each draw is a row of its own
        given = {name: x for name, x in inputs.items() if name != "uniform"}
        inputs = {**inputs, **{name: ops.repeat(x, drawn, axis=0) for name, x in given.items()}}
    if options["method"] == "sample" and options["top_k"] == 1 and not scored:
        own = {"method": "greedy"}
    search = Search(
        length,
        config.pad_id,
        config.start_id,
        config.end_id,
        prompt=inputs.get("prompt"),
        uniform=inputs.get("uniform"),
        results=results // drawn,
        scored=scored,
        **own,
    )
    stack = dataclasses.replace(_decoder(model.decoder), weights=options["weights"])
    positions = _positions(model.decoder, length, length - 1, length)
    source_positions, encoded = Positions(), None
    if "source" not in inputs:
        source = ops.zeros((ops.shape(inputs["prompt"])[0], 0), dtype="int32")
        mask = source == 0
    elif not encoder_reasons(model):
        source, mask = inputs["source"], model.source_mask(inputs["source"])
        room = ops.shape(source)[1]
        stack = dataclasses.replace(stack, encoder=_stack(model.encoder, None))
        source_positions = _positions(model.encoder, room, room, 2 * room)
    else:
        memory = model.encode_source(inputs["source"])
        encoded = ops.cast(memory["encoded"], "float32")
        source = ops.zeros(ops.shape(encoded)[:2], dtype="int32")  # of which nothing is read
        mask = memory.get("mask", source == 0)
    tokens, scores = current().DECODER.decode(
        stack, source, mask, encoded, positions, source_positions, search
    )
    if drawn > 1:
        tokens = ops.reshape(tokens, (-1, results, length))
        scores = None if scores is None else ops.reshape(scores, (-1, results))
    return tokens, scores


def _stack(stack: Stack, logits: Dense | None) -> DecoderStack:
    tokens = stack.embedding.tokens
    heads, kv_heads, head_dim, value_dim = _sizes(_attentions(stack.blocks[0])[0][0])
    return DecoderStack(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        embedding=tokens.embeddings,
        embedding_scale=tokens.width**0.5 if tokens.scale else 1.0,
        final_norm=_norm(stack.final_norm),
        logits=logits,
        layers=tuple(map(_layer, stack.blocks)),
    )


def _decoder(decoder: TransformerDecoder) -> DecoderStack:
    if decoder.output_layer is None:
        logits = Dense(decoder.embedding.tokens.embeddings, transposed=True)
    else:
        logits = _dense(decoder.output_layer)
    return _stack(decoder, logits)


def _layer(block: Any) -> DecoderLayer:
    hidden, up, back = _feed_forward(block)
    (own, own_norm), *cross = _attentions(block)
    return DecoderLayer(
        norm_first=block.norm_first,
        activation=_activation(hidden),
        self_norm=_norm(own_norm),
        self_attention=_attention(own),
        feed_forward_norm=_norm(block.feed_forward_norm),
        hidden=_dense(hidden),
        up=None if up is None else _dense(up),
        back=_dense(back),
        cross_norm=_norm(cross[0][1]) if cross else None,
        cross_attention=_attention(cross[0][0]) if cross else None,
    )


def _attention(attention: MultiHeadAttention) -> DecoderAttention:
    normed = attention._qk_norm
    return DecoderAttention(
        **{name: _dense(getattr(attention, f"{name}_dense")) for name in _PROJECTIONS},
        gate=_dense(attention._gate_dense) if attention._use_gate else None,
        query_norm=_norm(attention._query_norm) if normed else None,
        key_norm=_norm(attention._key_norm) if normed else None,
        sinks=attention.sinks,
        soft_cap=attention._soft_cap,
        window=attention._sliding_window,
    )


def _dense(layer: Any) -> Dense:
    return Dense(layer.kernel, layer.bias)


def _norm(layer: Any) -> Any:
    if layer is None:
        return None
    if isinstance(layer, RMSNormalization):
        return Norm(layer.scale, None, layer.epsilon, root_mean_square=True)
    return Norm(layer.gamma, layer.beta, layer.epsilon)


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
        half = _attentions(stack.blocks[0])[0][0].key_dim // 2
        ones = ops.ones((1, length, 1, half))
        pairs = ops.concatenate([ones, ops.zeros_like(ones)], axis=-1)
        rotation = rotary_embedding(pairs)[0, :, 0]
    if "alibi_slopes" in arguments:
        distances = ops.abs(ops.arange(room, dtype="int32") - start)
        bias = -ops.expand_dims(arguments["alibi_slopes"], 1) * ops.cast(distances, "float32")
    if "position_bias" in arguments:
        bias = arguments["position_bias"][0, :, 0]
    return Positions(table, rotation, bias)
