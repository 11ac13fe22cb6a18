"""The settings of a model on the command line and in files: its config checks the ranges.

The configs of models are not read for them, because they load Keras.
"""

from __future__ import annotations

from heed.config import kind_of
from heed.layers.layer_config import OPTIONS, LayerConfig
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.options.user_config import Setting, settings_of

TRAINING = settings_of(TrainingOptions)
MODEL = [
    Setting("width", int, "width of the model"),
    Setting("encoder_layers", int, "layers of the encoder"),
    Setting("decoder_layers", int, "layers of the decoder"),
    *(
        Setting(name, kind_of(LayerConfig, name), field.metadata["help"])
        for name, field in OPTIONS.items()
        if field.metadata["in_text"]
    ),
    Setting("sliding_window_pattern", int, "every n-th layer sees all, the others the window"),
    Setting("rotary_local_base", float, "rotary_base of layers with a sliding window"),
    Setting("rotary_pattern", int, "every n-th layer has no rotary positions"),
    Setting("logit_soft_cap", float, "c bounds logits x to c tanh(x / c)"),
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
]
