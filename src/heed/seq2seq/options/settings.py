"""The settings of a training: one table for the command line, YAML files and the documentation.

`TrainingOptions` and the model's config check the ranges.
"""

from __future__ import annotations

from typing import NamedTuple

from heed._config import kind_of
from heed.layers.layer_config import OPTIONS, LayerConfig


class Setting(NamedTuple):
    """One setting.

    Args:
        name: the field of `TrainingOptions` or of a model's config; `--name` on the command line.
        kind: int, float, str or bool.
        help: one line for the user.
    """

    name: str
    kind: type
    help: str


TRAINING = (
    Setting("steps", int, "training steps; with --resume, the total"),
    Setting("batch_size", int, "sentence pairs in a batch"),
    Setting("batch_tokens", int, "most tokens per side of a batch, instead"),
    Setting("accumulate", int, "batches per step (1)"),
    Setting("learning_rate", float, "highest learning rate"),
    Setting("schedule", str, "after the warm-up: cosine, inverse_sqrt or constant"),
    Setting("warmup_steps", int, "steps of warm-up (a third, at most 1,000)"),
    Setting("clip_norm", float, "largest norm of a gradient (1)"),
    Setting("label_smoothing", float, "share of the target spread over the vocabulary"),
    Setting("alignment_weight", float, "weight of --alignment in the loss (0.05)"),
    Setting("precision", str, "dtype that layers compute in: float32 or bfloat16"),
    Setting("ema", float, "decay of a moving average of weights, such as 0.999"),
    Setting("validate_every", int, "steps between validations"),
    Setting("validate_with", str, "metric of validation: loss, bleu or chrf"),
    Setting("validate_sentences", int, "sentences to translate for bleu or chrf (200)"),
    Setting("bleu_tokenizer", str, "tokenizer of bleu: auto (by script), 13a, zh, char ..."),
    Setting("checkpoint_every", int, "steps between checkpoints"),
    Setting("keep", int, "checkpoints to keep (2)"),
    Setting("patience", int, "validations without improvement until it stops"),
    Setting("seed", int, "random seed"),
)
MODEL = (
    Setting("width", int, "width of the model"),
    Setting("encoder_layers", int, "layers of the encoder"),
    Setting("decoder_layers", int, "layers of the decoder"),
    *(
        Setting(name, kind_of(LayerConfig, name), field.metadata["help"])
        for name, field in OPTIONS.items()
        if field.metadata["in_text"]
    ),
    Setting("position", str, "sinusoidal, learned, rotary, alibi or relative"),
    Setting("max_length", int, "longest sequence of learned positions"),
    Setting("tie_embeddings", bool, "one table for target tokens and output layer"),
    Setting("share_embeddings", bool, "one table for both sides' tokens"),
    Setting("scale_embeddings", bool, "multiply embeddings by the root of the width"),
    Setting("normalize_embeddings", bool, "normalise embeddings with their positions"),
    Setting("cell", str, "recurrent: lstm or gru"),
    Setting("attention", str, "recurrent: additive (Bahdanau), general (Luong) ..."),
    Setting("attention_units", int, "recurrent: units of additive attention"),
    Setting("location_filters", int, "recurrent: features of location attention"),
    Setting("location_kernel_size", int, "recurrent: positions that each feature covers"),
)
