"""Each option of a Transformer's layer is described once, and all that is made from the description agrees."""

import dataclasses
import inspect

import keras
import numpy as np
import pytest

from heed.layers import (
    DotProductAttention,
    FeedForward,
    MultiHeadAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from heed.layers.layer_config import OPTIONS, LayerConfig, options_of
from heed.layers.normalization import NORMALIZATIONS
from heed.models import TransformerConfig, VisionTransformerConfig
from heed.ops.options import AttentionOptions
from heed.seq2seq.options.settings import MODEL


def test_layers_configs_and_settings_have_every_option() -> None:
    # Of the class, Python 3.11.2 and before would give the signature of Keras' `Layer.__new__`.
    signature = inspect.signature(TransformerEncoderLayer.__init__).parameters
    settings = {one.name: one for one in MODEL}
    config = TransformerEncoderLayer(2, 16).get_config()
    for name, field in OPTIONS.items():
        assert name in config
        if name not in ("num_heads", "feed_forward_width"):  # which a layer must be given
            assert signature[name].default == config[name] == field.default
        if field.metadata["in_text"]:
            assert settings[name].help == field.metadata["help"]
        else:
            assert name not in settings
        for described in (TransformerEncoderLayer, TransformerConfig, VisionTransformerConfig):
            assert f" {name}: " in described.__doc__
            assert "{options}" not in described.__doc__
    fields = {field.name: field.default for field in dataclasses.fields(TransformerConfig)}
    assert {name: fields[name] for name in OPTIONS} == LayerConfig().layer_options()


LAYERS = {
    "attention": MultiHeadAttention,
    "scores": DotProductAttention,
    "feed_forward": FeedForward,
}


@pytest.mark.parametrize("part", LAYERS)
def test_parts_of_a_layer_have_the_arguments_that_they_are_passed(part: str) -> None:
    parameters = inspect.signature(LAYERS[part].__init__).parameters
    assert options_of(part)
    assert set(options_of(part)) <= set(parameters)
    assert {part for field in OPTIONS.values() for part in field.metadata["parts"]} == set(LAYERS)


@pytest.mark.parametrize("part", ["attention", "scores"])
def test_an_attention_describes_the_options_of_its_part(part: str) -> None:
    for name in options_of(part):
        assert f" {name}: " in LAYERS[part].__doc__
    assert " gated: " not in LAYERS[part].__doc__
    arguments = (2, 4) if part == "attention" else ()
    with pytest.raises(ValueError, match="Unrecognized keyword arguments"):
        LAYERS[part](*arguments, gated=True)


def test_options_of_the_scores_are_options_of_the_op() -> None:
    assert set(options_of("scores")) <= set(AttentionOptions.__annotations__)
    assert set(options_of("scores")) <= set(options_of("attention"))


def test_the_names_of_normalisations_are_those_of_the_layers() -> None:
    for name in NORMALIZATIONS:
        assert LayerConfig(normalization=name).normalization == name
    text = OPTIONS["normalization"].metadata["values"].text
    assert text == " or ".join(f'"{name}"' for name in NORMALIZATIONS)


@pytest.mark.parametrize("layer", [TransformerEncoderLayer, TransformerDecoderLayer])
@pytest.mark.parametrize(
    ("name", "value", "requirement"),
    [
        ("num_key_value_heads", 3, "must divide `num_heads`"),
        ("dropout", 1.0, "with 0 <= dropout < 1"),
        ("activation", "no such activation", "the name of a Keras activation"),
        ("norm_first", "no", "must be True or False"),
        ("normalization", "batch", "must be one of 'layer', 'rms'"),
        ("soft_cap", 0, "> 0"),
        ("sliding_window", 0, ">= 1"),
    ],
)
def test_layers_check_their_options(layer, name, value, requirement) -> None:
    with pytest.raises(ValueError, match=requirement) as caught:
        layer(2, 16, **{name: value})
    assert f"Received: {name}={value!r}" in str(caught.value)


def test_a_layer_takes_functions_and_numpy_values() -> None:
    layer = TransformerEncoderLayer(
        np.int64(2),
        16,
        activation=keras.activations.silu,
        gated=np.bool_(True),
        dropout=np.float32(0.5),
    )
    assert layer.activation is keras.activations.silu
    assert layer.gated is True
    assert layer.get_config()["activation"] == "silu"
    with pytest.raises(ValueError, match="the name of a Keras activation"):
        TransformerConfig(3, 9, activation=keras.activations.silu)
    with pytest.raises(ValueError, match="Unrecognized keyword arguments"):
        TransformerEncoderLayer(2, 16, sink=True)
