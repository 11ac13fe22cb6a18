"""heed's models written in Keras' own layers (see `heed.layers.stock_forms`)."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from heed.layers.stock_forms import INPUTS, StockCopy, StockFormError, call_arguments, stock_form
from heed.models._decoder import TransformerDecoder
from heed.models._encoder import TransformerEncoder
from heed.models._language_model import LanguageModel
from heed.models._transformer import Transformer


def _tokens(name: str) -> Any:
    return keras.Input((None,), dtype="int32", name=name)


INPUTS[Transformer] = lambda: {"source": _tokens("source"), "target": _tokens("target")}
INPUTS[LanguageModel] = lambda: _tokens("tokens")
INPUTS[TransformerEncoder] = lambda: _tokens("source")


def _embed(copy: StockCopy, embedding: Any, ids: Any, training: bool | None) -> Any:
    """Embed tokens for the first layer; raise a StockFormError for positions that attention applies."""
    if embedding.config.position not in ("sinusoidal", "learned"):
        raise StockFormError(f"position={embedding.config.position!r}")
    if embedding.segments is not None:
        raise StockFormError(f"num_segments={embedding.segments.vocabulary_size}")
    x = copy.form(embedding.positions, copy.form(embedding.tokens, ids))
    if embedding.norm is not None:
        x = copy.normalize(x, embedding.norm)
    return copy.drop(x, embedding.drop, embedding, training)


def _normalize(copy: StockCopy, stack: Any, x: Any) -> Any:
    return x if stack.final_norm is None else copy.normalize(x, stack.final_norm)


def _expand_queries(mask: Any) -> Any:
    """Expand a mask of keys, (B, S), to (B, 1, S)."""
    return None if mask is None else ops.expand_dims(mask, 1)


@stock_form(TransformerEncoder)
def _encoder(copy: StockCopy, model: Any, *args: Any, **kwargs: Any) -> Any:
    given = call_arguments(model, args, kwargs, "return_attention_scores", "segments")
    source, training = given["source"], given["training"]
    mask = _expand_queries(model.source_mask(source))
    with copy.prefix_names(model.name):
        x = _embed(copy, model.embedding, source, training)
        for block in model.blocks:
            x = copy.form(block, x, attention_mask=mask, training=training)
        return _normalize(copy, model, x)


@stock_form(TransformerDecoder)
def _decoder(copy: StockCopy, model: Any, *args: Any, **kwargs: Any) -> Any:
    given = call_arguments(model, args, kwargs, "return_attention_scores", "caches")
    encoded, training = given["encoded"], given["training"]
    mask = _expand_queries(given["source_mask"])
    with copy.prefix_names(model.name):
        x = _embed(copy, model.embedding, given["target"], training)
        for block in model.blocks:
            x = copy.form(block, x, encoded, cross_attention_mask=mask, training=training)
        x = _normalize(copy, model, x)
        return model.bound(ops.cast(_logits(copy, model, x), "float32"))


def _logits(copy: StockCopy, model: Any, x: Any) -> Any:
    """Compute the logits; a tied output layer gets a copy of the table."""
    if model.output_layer is not None:
        return copy.form(model.output_layer, x)
    size = model.config.target_vocabulary_size
    output = copy.layer(model.embedding, "output", keras.layers.Dense, units=size, use_bias=False)
    table = model.embedding.tokens
    return copy.with_weights(output, lambda: [np.transpose(table.get_weights()[0])])(x)


@stock_form(LanguageModel)
def _language_model(copy: StockCopy, model: Any, *args: Any, **kwargs: Any) -> Any:
    given = call_arguments(model, args, kwargs, "return_attention_scores")
    return copy.form(model.decoder, given["tokens"], training=given["training"])


@stock_form(Transformer)
def _transformer(copy: StockCopy, model: Any, *args: Any, **kwargs: Any) -> Any:
    given = call_arguments(model, args, kwargs, "return_attention_scores")
    inputs, training = given["inputs"], given["training"]
    if not isinstance(model.encoder, TransformerEncoder):
        raise StockFormError(f"encoder={type(model.encoder).__name__}")
    source = inputs["source"]
    encoded = copy.form(model.encoder, source, training=training)
    mask = model.source_mask(source)
    return copy.form(model.decoder, inputs["target"], encoded, mask, training=training)
