"""What a person may choose of a training: one table for the command line, for YAML and for the documentation.

Ranges are not here: `TrainingOptions` and the model's config check them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class Setting(NamedTuple):
    """One thing to choose.

    Args:
        name: the field of `TrainingOptions` or of a model's config; `--name` on the command line.
        kind: int, float, str or bool.
        help: what it says, for people.
    """

    name: str
    kind: type
    help: str


TRAINING = (
    Setting("steps", int, "training steps; with --resume, in all"),
    Setting("batch_size", int, "sentence pairs in a batch"),
    Setting("batch_tokens", int, "most tokens of a batch on either side, instead"),
    Setting("accumulate", int, "batches in a step (1)"),
    Setting("learning_rate", float, "highest learning rate"),
    Setting("schedule", str, "what it does then: cosine, inverse_sqrt or constant"),
    Setting("warmup_steps", int, "steps until it is reached (a third, at most 1,000)"),
    Setting("clip_norm", float, "largest norm of a gradient (1)"),
    Setting("label_smoothing", float, "share of the target spread over the vocabulary"),
    Setting("alignment_weight", float, "how much --alignment counts (0.05)"),
    Setting("precision", str, "float32, or bfloat16: what layers compute in"),
    Setting("ema", float, "decay of a moving average of weights, such as 0.999"),
    Setting("validate_every", int, "steps between validations"),
    Setting("validate_with", str, "what makes one better: loss, bleu or chrf"),
    Setting("validate_sentences", int, "sentences translated for it (200)"),
    Setting("checkpoint_every", int, "steps between checkpoints"),
    Setting("keep", int, "checkpoints that are kept (2)"),
    Setting("patience", int, "validations until it stops without a better one"),
    Setting("seed", int, "seed of everything that is drawn"),
)
MODEL = (
    Setting("width", int, "width of the model"),
    Setting("encoder_layers", int, "layers of the encoder"),
    Setting("decoder_layers", int, "layers of the decoder"),
    Setting("dropout", float, "dropout rate"),
    Setting("num_heads", int, "attention heads"),
    Setting("num_key_value_heads", int, "heads of keys and values, fewer of them"),
    Setting("feed_forward_width", int, "hidden width of the feed-forward parts"),
    Setting("position", str, "sinusoidal, learned, rotary, alibi or relative"),
    Setting("max_length", int, "longest sequence of learned positions"),
    Setting("norm_first", bool, "normalise before each part, not after it"),
    Setting("normalization", str, "layer or rms"),
    Setting("activation", str, "of the feed-forward parts: relu, gelu, silu ..."),
    Setting("gated", bool, "gated linear units in the feed-forward parts"),
    Setting("tie_embeddings", bool, "one table for target tokens and output layer"),
    Setting("share_embeddings", bool, "one table for both sides' tokens"),
    Setting("attention_dropout", float, "dropout rate of attention weights"),
    Setting("key_dim", int, "width of a head's queries and keys"),
    Setting("value_dim", int, "width of a head's values"),
    Setting("use_bias", bool, "biases in the dense layers"),
    Setting("soft_cap", float, "bound of attention scores"),
    Setting("sliding_window", int, "how far self-attention sees"),
    Setting("qk_norm", bool, "normalise queries and keys"),
    Setting("sinks", bool, "a learned score that has no value, for each head"),
    Setting("cell", str, "recurrent: lstm or gru"),
    Setting("attention", str, "recurrent: additive (Bahdanau), general (Luong) ..."),
    Setting("attention_units", int, "recurrent: units of additive attention"),
    Setting("location_filters", int, "recurrent: features of location attention"),
    Setting("location_kernel_size", int, "recurrent: positions that one of them sees"),
)  # fmt: skip


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean ...`, if there is a name like it, else nothing.

    Example:
        >>> nearest("setps", ["steps", "seed"])
        ': did you mean `steps`?'
    """
    found = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean `{found[0]}`?" if found else ""
