"""CTranslate2 with the weights of heed's model, written by its own specs."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec

from benchmarks.cases import Case
from benchmarks.peers import TOGETHER, Prepared, _generate, _tensorflow, threads
from heed import models, ops

_tensorflow.set_threads()


def prepare(case: Case) -> Prepared:
    """Texts are shared out among the threads, or the work on all of them is.

    Tokens are numbers as text, as CTranslate2 wants them, made before the clock starts.
    """
    count = threads() or os.cpu_count() or 1
    together = os.environ.get(TOGETHER) == "1" or case.batch == 1
    with tempfile.TemporaryDirectory(prefix="heed-benchmark-") as folder:
        spec = described(_generate.model(case), max(case.length, case.key_length))
        spec.validate()
        if case.weights != "float32":
            spec.optimize(quantization=case.weights)
        spec.save(folder)
        translator = ctranslate2.Translator(
            folder,
            inter_threads=1 if together else count,
            intra_threads=count if together else 1,
            compute_type=case.weights,
        )
    texts = [list(map(str, text)) for text in _generate.sources(case).tolist()]
    options = {
        "beam_size": case.beams,
        "length_penalty": 0,
        "max_decoding_length": case.length,
        "max_batch_size": case.batch if together else -(-case.batch // count),
    }

    def arrays(results: Any) -> list[np.ndarray]:
        written = [result.hypotheses[0] for result in results]
        return [_generate.compared(case, np.array(written, np.float32))]

    return Prepared(lambda: translator.translate_batch(texts, **options), arrays)


def described(model: models.Transformer, length: int) -> TransformerSpec:
    """The model as CTranslate2 describes it: weights (outputs, inputs), projections of one input side by side."""
    config = model.config
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers), config.num_heads
    )
    spec.config.layer_norm_epsilon = model.decoder.final_norm.epsilon
    table = np.asarray(ops.sinusoidal_positions(np.arange(length), config.width))
    for stack, side in ((model.encoder, spec.encoder), (model.decoder, spec.decoder)):
        side.position_encodings.encodings = table
        _norm(side.layer_norm, stack.final_norm)
        for layer, block in zip(side.layer, stack.blocks, strict=True):
            _feed_forward(layer.ffn, block)
    spec.encoder.embeddings[0].weight = np.asarray(model.encoder.embedding.tokens.embeddings)
    spec.decoder.embeddings.weight = np.asarray(model.decoder.embedding.tokens.embeddings)
    _linear(spec.decoder.projection, model.decoder.output_layer)
    for layer, block in zip(spec.encoder.layer, model.encoder.blocks, strict=True):
        _attention(layer.self_attention, block.attention, block.attention_norm, together=True)
    for layer, block in zip(spec.decoder.layer, model.decoder.blocks, strict=True):
        own, other = block.self_attention, block.encoded_attention
        _attention(layer.self_attention, own, block.self_attention_norm, together=True)
        _attention(layer.attention, other, block.encoded_attention_norm, together=False)
    vocabulary = list(map(str, range(_generate.VOCABULARY)))
    for i, name in enumerate(("<blank>", "<s>", "</s>", "<unk>")):
        vocabulary[i] = name
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    return spec


def _attention(spec: Any, attention: Any, norm: Any, together: bool) -> None:
    """Projections of the same input are one: all three, or keys and values, which read another sequence."""
    _norm(spec.layer_norm, norm)
    query, others = attention.query_dense, (attention.key_dense, attention.value_dense)
    inputs = [(query, *others)] if together else [(query,), others]
    for linear, layers in zip(spec.linear, [*inputs, (attention.output_dense,)], strict=True):
        _linear(linear, *layers)


def _feed_forward(spec: Any, block: Any) -> None:
    _norm(spec.layer_norm, block.feed_forward_norm)
    _linear(spec.linear_0, block.feed_forward.hidden_dense)
    _linear(spec.linear_1, block.feed_forward.output_dense)


def _linear(spec: Any, *layers: Any) -> None:
    biases = [np.asarray(layer.bias).reshape(-1) for layer in layers]
    weights = [
        np.asarray(layer.kernel).reshape(-1, len(bias)).T
        for layer, bias in zip(layers, biases, strict=True)
    ]
    spec.weight, spec.bias = np.concatenate(weights), np.concatenate(biases)


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = np.asarray(norm.gamma), np.asarray(norm.beta)
