"""Decoding of texts, and a training step on them: heed, CTranslate2 with heed's weights, and KerasHub."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras
import numpy as np
from keras import layers

from benchmarks.cases import Case
from benchmarks.peers import Prepared, find_in, threads
from heed import models

VOCABULARY, LAYERS, DROPOUT, CLIP_NORM = 8000, 3, 0.1, 1.0
START = 1
FIRST_WORD = 4  # lower ids are padding, start, end and unknown, in each side's own order
# Added to the scores of special tokens, so that no side ends early.
NEVER = -1e4


def batch(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return source and target token ids, (B, S) and (B, T), none of them padding."""
    rng = np.random.default_rng(0)
    shapes = ((case.batch, case.key_length), (case.batch, case.length))
    source, target = (rng.integers(FIRST_WORD, VOCABULARY, shape) for shape in shapes)
    return source.astype("int32"), target.astype("int32")


def make_model(case: Case, **options: Any) -> models.Transformer:
    """Return a heed model with fixed random weights; `options` are those of its config."""
    keras.utils.set_random_seed(0)
    width = case.heads * case.head_dim
    config = models.TransformerConfig(
        VOCABULARY,
        VOCABULARY,
        width=width,
        num_heads=case.heads,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        feed_forward_width=4 * width,
        tie_embeddings=False,
        **options,
    )
    made = models.Transformer(config)
    made.build()
    return made


def make_endless(case: Case) -> models.Transformer:
    """Return a heed model which never ends a text early."""
    made = make_model(case)
    made.decoder.output_layer.bias.assign(np.where(np.arange(VOCABULARY) < FIRST_WORD, NEVER, 0.0))
    return made


def to_comparable(case: Case, tokens: Any) -> np.ndarray:
    """Return the array that sides must agree on: the tokens, or only their number if weights are rounded."""
    tokens = np.asarray(tokens, np.float32)
    return tokens if case.weights == "float32" else np.sign(tokens)


def heed(case: Case) -> Prepared:
    """Decode greedily, or by beam search without a length penalty, as all texts have the same length."""
    model, texts = make_endless(case), batch(case)[0]
    options: dict[str, Any] = {"max_length": case.length, "weights": case.weights}
    if case.beams > 1:
        options |= {"method": "beam", "beam_size": case.beams, "length_penalty": 0.0}
    return Prepared(
        lambda: models.generate(model, texts, **options),
        lambda tokens: [to_comparable(case, tokens)],
    )


def ctranslate2(case: Case, together: bool = False) -> Prepared:
    """Decode by CTranslate2: each thread a part of the texts, or all threads together all texts.

    CTranslate2 takes tokens as texts, which are made before the clock starts.
    """
    import ctranslate2

    from heed.export.ctranslate2 import write

    count = threads() or os.cpu_count() or 1
    together = together or case.batch == 1
    with tempfile.TemporaryDirectory(prefix="heed-benchmark-") as folder:
        longest = max(case.length, case.key_length)
        write(make_endless(case), folder, quantization=case.weights, longest=longest)
        translator = ctranslate2.Translator(
            folder,
            inter_threads=1 if together else count,
            intra_threads=count if together else 1,
            compute_type=case.weights,
        )
    texts = [list(map(str, text)) for text in batch(case)[0].tolist()]
    options: dict[str, Any] = {
        "beam_size": case.beams,
        "length_penalty": 0,
        "max_decoding_length": case.length,
        "max_batch_size": case.batch if together else -(-case.batch // count),
    }

    def arrays(results: Any) -> list[np.ndarray]:
        tokens = [[int(token) for token in result.hypotheses[0]] for result in results]
        return [to_comparable(case, tokens)]

    return Prepared(lambda: translator.translate_batch(texts, **options), arrays)


def bart(case: Case, xla: bool = False) -> Prepared:
    """Decode by KerasHub's `generate` and its cache; all tokens, because there is no end token."""
    import keras_hub

    keras.utils.set_random_seed(0)
    width, texts = case.heads * case.head_dim, batch(case)[0]
    backbone = keras_hub.models.BartBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=LAYERS,
        num_heads=case.heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=max(case.key_length, case.length + 1),
    )
    model = keras_hub.models.BartSeq2SeqLM(backbone, preprocessor=None)
    model.compile(sampler="greedy", jit_compile=xla)
    start = np.zeros((case.batch, case.length + 1), "int32")
    start[:, 0] = 1
    inputs = {
        "encoder_token_ids": texts,
        "encoder_padding_mask": np.ones_like(texts),
        "decoder_token_ids": start,
        "decoder_padding_mask": start,  # 1 for the only token
    }
    return Prepared(
        lambda: model.generate(inputs, stop_token_ids=None),
        lambda written: [np.asarray(written["decoder_token_ids"], np.float32)[:, 1:]],
    )


def train(case: Case) -> Prepared:
    """Train at a learning rate of 0: the weights stay the same, and so does the work of each step."""
    import tensorflow as tf

    from heed.seq2seq import TrainingOptions

    tf.config.experimental.enable_op_determinism()
    model = make_model(case, dropout=DROPOUT, attention_dropout=DROPOUT)
    options = TrainingOptions(clip_norm=CLIP_NORM)
    make_step = find_in(
        "TrainingStep", "seq2seq.training._step", "seq2seq.training.step", "seq2seq.training_step"
    )
    step = make_step(model, options, tf.distribute.get_strategy(), one_shape=True)
    texts = find_in("Batch", "seq2seq.tasks.task", "seq2seq.task")(*batch(case))
    return Prepared(lambda: step(texts, 0, 0.0).numpy(), lambda loss: [np.asarray(loss)])


def train_hub(case: Case, xla: bool = False) -> Prepared:
    """Compile a pre-norm encoder-decoder model with Adam, for a training step on one batch."""
    from keras_hub import layers as hub

    keras.utils.set_random_seed(0)
    width = case.heads * case.head_dim
    options: dict[str, Any] = {
        "intermediate_dim": 4 * width,
        "num_heads": case.heads,
        "dropout": DROPOUT,
        "normalize_first": True,
    }
    tokens = [keras.Input((n,), dtype="int32") for n in (case.key_length, case.length)]
    encoded, x = (
        layers.Dropout(DROPOUT)(hub.TokenAndPositionEmbedding(VOCABULARY, ids.shape[1], width)(ids))
        for ids in tokens
    )
    for _ in range(LAYERS):
        encoded = hub.TransformerEncoder(**options)(encoded)
    encoded = layers.LayerNormalization()(encoded)
    for _ in range(LAYERS):
        x = hub.TransformerDecoder(**options)(x, encoded)
    logits = layers.Dense(VOCABULARY)(layers.LayerNormalization()(x))
    model = keras.Model(tokens, logits)
    model.compile(
        # At a learning rate of 0 the weights stay the same, and so does the work of each step.
        keras.optimizers.Adam(0.0, global_clipnorm=CLIP_NORM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=xla,
    )
    model.optimizer.build(model.trainable_variables)  # its state is not part of a step
    source, target = batch(case)
    # The decoder reads the start token, then the target without its last token.
    start = np.full_like(target[:, :1], START)
    inputs = [source, np.concatenate([start, target[:, :-1]], axis=1)]
    return Prepared(
        lambda: model.train_on_batch(inputs, target), lambda loss: [np.asarray(loss, np.float32)]
    )
