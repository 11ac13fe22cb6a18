"""Why the engine does not decode a model with these options, or not encode its sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from heed.decoding.engine.describe import (
    PROJECTIONS,
    activation_name,
    attentions,
    feed_forward,
    head_sizes,
    own_attentions,
    rotary_bases,
)
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
from heed.ops.backends import NATIVE, current
from heed.ops.core.description import ACTIVATIONS, MOST_BEAMS
from heed.ops.dispatch import allows_native, get_implementation
from heed.ops.observe import is_watched

# The methods whose work the engine does; a subclass may have its own. A Transformer may encode as it likes.
_REPLACED = {
    "Transformer": ("make_state", "decode_step"),
    "LanguageModel": ("make_state", "decode_step", "encode_source"),
}
_LAYERS = {
    "TransformerDecoder": TransformerDecoderLayer,
    "TransformerEncoder": TransformerEncoderLayer,
}


def _class(name: str) -> Any:
    """Return heed's class of this name from Keras' registry: models import this package, not the other way round."""
    return keras.saving.get_registered_object(f"heed>{name}")


def _kind(model: Any) -> str | None:
    """Return the name of the class of heed's that a model is an instance of, if the engine knows one."""
    names = (x.__name__ for x in type(model).__mro__ if x is _class(x.__name__))
    return next((name for name in names if name in _REPLACED), None)


def unsupported_reasons(model: Any, options: dict[str, Any]) -> list[str]:
    """Return why the engine does not decode this model with these options of `generate`; empty if it does."""
    reasons = [*machine_reasons(), *_of_call(options)]
    kind = _kind(model)
    if kind is None:
        names = " nor a ".join(_REPLACED)
        return [*reasons, f"{type(model).__name__} is neither a {names}"]
    for name in _REPLACED[kind]:
        if getattr(type(model), name) is not getattr(_class(kind), name):
            reasons.append(f"{type(model).__name__} has a `{name}` of its own")
    backend = current()
    if not (backend.is_tracing() or all(backend.has_values(x.value) for x in model.variables)):
        reasons.append("the weights stand for others while code is transformed")
    return [*reasons, *_of_stack(model.decoder, "TransformerDecoder")]


def machine_reasons() -> list[str]:
    """Return why the engine runs for no model here and now; empty if it does."""
    backend = current()
    reasons = list(backend.IMPLEMENTATIONS[NATIVE].unsupported_reasons(None))
    if not reasons and backend.is_tracing() and backend.DECODER_OP is None:
        reasons.append("a compiled or transformed function calls it, and the engine needs numbers")
    return reasons


def encoder_reasons(model: Any) -> list[str]:
    """Return why the graph encodes the sources of a model that the engine decodes; empty if the engine encodes them."""
    if _kind(model) == "LanguageModel":
        return []
    reasons = [*_of_stack(model.encoder, "TransformerEncoder")]
    if type(model) is _class("Transformer"):
        return reasons
    return [f"{type(model).__name__} may encode otherwise", *reasons]


def _of_call(options: dict[str, Any]) -> Iterator[str]:
    if not allows_native():
        yield f'heed.set_implementation chose "{get_implementation()}"'
    if is_watched():
        yield "heed.inspect captures the attention"
    if options["method"] == "beam" and options["beam_size"] > MOST_BEAMS:
        yield f"a beam of {options['beam_size']} is wider than the {MOST_BEAMS} that the engine takes"
    if options["method"] == "beam" and options["coverage_penalty"]:
        yield "a coverage penalty needs attention weights, which the engine never builds"
    if not options["use_cache"]:
        yield "without a cache each step is a run of the whole decoder"


def _of_stack(stack: Any, kind: str) -> Iterator[str]:
    """Yield why the engine does not run a decoder or an encoder, one of `_LAYERS`: above all, changed layers."""
    for part, classes in _parts(stack, kind):
        if type(part) not in classes:
            names = " or ".join(x.__name__ for x in classes)
            yield f"{part.name} is a {type(part).__name__}, not a heed {names}"
            return
        if part.dtype_policy.name == "float32" and not getattr(part, "lora_enabled", False):
            continue  # nearly always, and quicker to ask
        if part.compute_dtype != "float32" or part.variable_dtype != "float32":
            yield f"{part.name} computes in {part.dtype_policy.name}, the engine in float32"
            return
        if getattr(part, "quantization_mode", None):
            yield f"{part.name} is quantised to {part.quantization_mode}"
            return
        if getattr(part, "lora_enabled", False):
            yield f"{part.name} has LoRA weights"
            return
    output = getattr(stack, "output_layer", None)
    if output is not None and activation_name(output) != "linear":
        yield f"{output.name} has an activation, {activation_name(output)!r}"
    widths = {x.rotary_dim or x.key_dim for x in own_attentions(stack) if x.rotary_dim != 0}
    if stack.config.position == "rotary" and len(widths) > 1:
        yield f"layers rotate different numbers of features, {sorted(widths)}"
    if kind == "TransformerEncoder" and len(rotary_bases(stack)) > 1:
        yield f"layers of the encoder have different values of rotary_base, {rotary_bases(stack)}"
    for block in stack.blocks:
        if reasons := [*_of_block(stack, block)]:
            yield from reasons
            return


def _parts(stack: Any, kind: str) -> Iterator[tuple[Any, tuple[type, ...]]]:
    """Yield the layers that a stack is made of, outer ones first, and the classes that the engine knows for each."""
    yield stack, (_class(kind),)
    yield stack.embedding, (_class("InputEmbedding"),)
    yield stack.embedding.tokens, (TokenEmbedding,)
    if stack.embedding.positions is not None:
        yield stack.embedding.positions, (SinusoidalPositions, LearnedPositions)
    if stack.embedding.bias is not None:
        yield stack.embedding.bias, (RelativePositionBias,)
    norms, dense = [stack.embedding.norm, stack.final_norm], [getattr(stack, "output_layer", None)]
    for block in stack.blocks:
        yield block, (_LAYERS[kind],)
        for attention, norm in attentions(block):
            yield attention, (MultiHeadAttention,)
            dense += [getattr(attention, f"{name}_dense") for name in (*PROJECTIONS, "gate")]
            norms += [norm, attention.query_norm, attention.key_norm]
        yield block.feed_forward, (FeedForward,)
        dense += feed_forward(block)
        norms.append(block.feed_forward_norm)
        norms += [block.post_norm(x) for _, x in attentions(block)]
        norms.append(block.post_norm(block.feed_forward_norm))
    for norm in filter(None, norms):
        yield norm, (LayerNormalization, RMSNormalization)
    for layer in filter(None, dense):
        yield layer, (FlatDense, FlatEinsumDense)


def _of_block(stack: Any, block: Any) -> Iterator[str]:
    """Yield why the engine does not run one layer of a stack."""
    hidden, up, back = feed_forward(block)
    activation = activation_name(hidden)
    if activation not in ACTIVATIONS:
        yield f"the engine has no activation {activation!r}, only {', '.join(ACTIVATIONS)}"
    for layer in (up, back):
        if layer is not None and activation_name(layer) != "linear":
            yield f"{layer.name} of {block.name} has an activation, {activation_name(layer)!r}"
    sizes = head_sizes(attentions(stack.blocks[0])[0][0])
    for attention, _ in attentions(block):
        name = f"{attention.name} of {block.name}"
        if head_sizes(attention) != sizes:
            yield f"{name} has other numbers or widths of heads than the first layer"
        if attention.own_widths:
            yield f"{name} has heads of own widths"
        if attention.output_dense is None:
            yield f"{name} has no output projection"
        if attention.position is not None:
            yield f"{name} has a `position` of its own"
    functions = [x.score_mod for x, _ in attentions(block) if x.score_mod is not None]
    if functions:
        yield f"{block.name} has score_mod={functions[0]!r}, a function of Python"
    if len(attentions(block)) > 1 and block.parallel:
        yield f"{block.name} has parallel={block.parallel} and cross-attention"
    if len(attentions(block)) > 1 and block.post_norms:
        yield f"{block.name} has post_norms={block.post_norms} and cross-attention"
    if len(attentions(block)) > 1 and block.encoded_attention.sliding_window is not None:
        yield f"{block.encoded_attention.name} of {block.name} has a sliding window"
