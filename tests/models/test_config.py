import dataclasses
import json

import numpy as np
import pytest

from heed.models import TransformerConfig
from tests.models.builders import small_config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source_vocabulary_size", 0),
        ("target_vocabulary_size", 3.0),
        ("width", -8),
        ("width", True),
        ("num_heads", 3),  # does not divide the width
        ("num_heads", 0),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", 3),  # does not divide the heads
        ("encoder_layers", 0),
        ("decoder_layers", "2"),
        ("feed_forward_width", None),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("dropout", float("nan")),
        ("attention_dropout", "0.1"),
        ("activation", "no such activation"),
        ("activation", 3),
        ("norm_first", 1),
        ("position", "absolute"),
        ("position", None),
        ("max_length", 0),
        ("tie_embeddings", None),
        ("share_embeddings", True),  # the vocabularies differ in size
        ("pad_id", -1),
        ("pad_id", 1),  # is the start
        ("start_id", 2),  # is the end
        ("end_id", 9),  # outside the target vocabulary
        ("key_dim", 0),
        ("value_dim", 2.5),
        ("use_bias", 1),
        ("soft_cap", 0),
        ("soft_cap", float("inf")),
        ("sliding_window", 0),
        ("sliding_window_pattern", 2),  # without a window
        ("logit_soft_cap", 0),
        ("normalization", "batch"),
        ("gated", None),
        ("qk_norm", "yes"),
        ("sinks", 2),
    ],
)
def test_a_bad_value_is_named_with_what_was_received(field, value):
    with pytest.raises(ValueError, match="must") as error:
        small_config(**{field: value})
    message = str(error.value)
    assert f"{field}={value!r}" in message.split("Received: ")[1]


def test_rotary_positions_need_heads_of_even_width():
    with pytest.raises(ValueError, match=r"`width` must .*rotary.*width=6, num_heads=2"):
        small_config(width=6, position="rotary")
    assert small_config(width=6, position="alibi").head_dim == 3


def test_widths_of_heads_may_be_given():
    config = small_config(width=7, num_heads=2, key_dim=6, position="rotary")
    assert (config.head_dim, config.value_dim) == (6, None)
    with pytest.raises(ValueError, match=r"rotary.*key_dim=5"):
        small_config(key_dim=5, position="rotary")


def test_sinusoidal_positions_need_an_even_width():
    with pytest.raises(ValueError, match=r"`width` must be even.*width=5"):
        small_config(width=5, num_heads=1)


def test_dict_and_back_through_json():
    config = small_config(dropout=0.1, position="alibi", num_key_value_heads=1)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_numbers_of_numpy_become_plain_ones():
    config = small_config(width=np.int64(16), dropout=np.float32(0.5))
    assert type(config.width) is int
    assert type(config.dropout) is float


def test_unknown_and_missing_fields_are_named():
    with pytest.raises(ValueError, match=r"Received: depth$"):
        TransformerConfig.from_dict({**small_config().to_dict(), "depth": 3})
    with pytest.raises(ValueError, match="target_vocabulary_size"):
        TransformerConfig.from_dict({"source_vocabulary_size": 3})


def test_it_is_frozen_and_can_be_a_key():
    config = small_config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.width = 16
    assert {config: 1}[small_config()] == 1
