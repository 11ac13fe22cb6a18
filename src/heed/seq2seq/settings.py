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
        rare: whether the help on the command line leaves it out; the documentation lists all.
    """

    name: str
    kind: type
    help: str
    rare: bool = False


TRAINING = (
    Setting("steps", int, "training steps; with --resume, in all"),
    Setting("batch_size", int, "sentence pairs in a batch"),
    Setting("batch_tokens", int, "most tokens of a batch on either side, instead"),
    Setting("accumulate", int, "batches in a step (1)", rare=True),
    Setting("learning_rate", float, "highest learning rate"),
    Setting("schedule", str, "what it does then: cosine, inverse_sqrt or constant", rare=True),
    Setting("warmup_steps", int, "steps until it is reached (a third, at most 1,000)", rare=True),
    Setting("clip_norm", float, "largest norm of a gradient (1)", rare=True),
    Setting("label_smoothing", float, "share of the target spread over the vocabulary", rare=True),
    Setting("alignment_weight", float, "how much --alignment counts (0.05)", rare=True),
    Setting("precision", str, "float32, or bfloat16: what layers compute in"),
    Setting("ema", float, "decay of a moving average of weights, such as 0.999"),
    Setting("validate_every", int, "steps between validations", rare=True),
    Setting("validate_with", str, "what makes one better: loss, bleu or chrf"),
    Setting("validate_sentences", int, "sentences translated for it (200)", rare=True),
    Setting("checkpoint_every", int, "steps between checkpoints", rare=True),
    Setting("keep", int, "checkpoints that are kept (2)", rare=True),
    Setting("patience", int, "validations until it stops without a better one"),
    Setting("seed", int, "seed of everything that is drawn", rare=True),
)
MODEL = (
    Setting("width", int, "width of the model"),
    Setting("encoder_layers", int, "layers of the encoder"),
    Setting("decoder_layers", int, "layers of the decoder"),
    Setting("dropout", float, "dropout rate", rare=True),
    Setting("num_heads", int, "attention heads", rare=True),
    Setting("num_key_value_heads", int, "heads of keys and values, fewer of them", rare=True),
    Setting("feed_forward_width", int, "hidden width of the feed-forward parts", rare=True),
    Setting("position", str, "sinusoidal, learned, rotary, alibi or relative"),
    Setting("max_length", int, "longest sequence of learned positions", rare=True),
    Setting("norm_first", bool, "normalise before each part, not after it", rare=True),
    Setting("normalization", str, "layer or rms", rare=True),
    Setting("activation", str, "of the feed-forward parts: relu, gelu, silu ...", rare=True),
    Setting("gated", bool, "gated linear units in the feed-forward parts", rare=True),
    Setting("tie_embeddings", bool, "one table for target tokens and output layer", rare=True),
    Setting("share_embeddings", bool, "one table for both sides' tokens", rare=True),
    Setting("attention_dropout", float, "dropout rate of attention weights", rare=True),
    Setting("key_dim", int, "width of a head's queries and keys", rare=True),
    Setting("value_dim", int, "width of a head's values", rare=True),
    Setting("use_bias", bool, "biases in the dense layers", rare=True),
    Setting("soft_cap", float, "bound of attention scores", rare=True),
    Setting("sliding_window", int, "how far self-attention sees", rare=True),
    Setting("qk_norm", bool, "normalise queries and keys", rare=True),
    Setting("sinks", bool, "a learned score that has no value, for each head", rare=True),
    Setting("cell", str, "recurrent: lstm or gru", rare=True),
    Setting("attention", str, "recurrent: additive (Bahdanau), general (Luong) ..."),
    Setting("attention_units", int, "recurrent: units of additive attention", rare=True),
    Setting("location_filters", int, "recurrent: features of location attention", rare=True),
    Setting("location_kernel_size", int, "recurrent: positions that one of them sees", rare=True),
)  # fmt: skip


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean ...`, if there is a name like it, else nothing.

    Example:
        >>> nearest("setps", ["steps", "seed"])
        ': did you mean `steps`?'
    """
    found = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean `{found[0]}`?" if found else ""
