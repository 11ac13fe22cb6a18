import dataclasses

import pytest

from heed.models import LanguageModelConfig, RecurrentTranslatorConfig
from tests.models.builders import masked_config, small_config, vision_config

VOCABULARIES = {"source_vocabulary_size": 11, "target_vocabulary_size": 9}


def language_config(**changes):
    return LanguageModelConfig(**{"vocabulary_size": 9, "width": 8, "num_heads": 2, **changes})


def recurrent_config(**changes):
    return RecurrentTranslatorConfig(**{**VOCABULARIES, **changes})


# Each config, and values that its other fields, or its range, exclude; with what else has to be given for that.
BAD = {
    small_config: [
        ("width", True),
        ("num_heads", 3),  # does not divide the width
        ("num_key_value_heads", 3),  # does not divide the heads
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("activation", "no such activation"),
        ("norm_first", 1),
        ("position", "absolute"),
        ("share_embeddings", True),  # the vocabularies differ in size
        ("pad_id", -1),
        ("pad_id", 1),  # is the start
        ("start_id", 2),  # is the end
        ("end_id", 9),  # outside the target vocabulary
        ("soft_cap", 0),
        ("soft_cap", float("inf")),
        ("sliding_window", 0),
        ("sliding_window_pattern", 2),  # without a window
    ],
    language_config: [
        ("end_id", 9),
        ("rotary_dim", 3),  # is odd
        ("rotary_dim", 6),  # more than a head has
        ("rotary_local_base", 9.0),  # without a window
        ("rotary_base", 9.0, {"position": "alibi"}),
        ("rotary_pattern", 2, {"position": "learned"}),
        ("parallel", True, {"norm_first": False}),
    ],
    masked_config: [
        ("vocabulary_size", 4),  # nothing but special tokens
        ("mask_id", -1),
        ("mask_id", 13),
        ("mask_id", 0),  # is padding
        ("end_id", 3),  # is the mask
        ("num_segments", 1.5),
        ("width", 9),
    ],
    vision_config: [
        ("image_size", 0),
        ("image_size", (4, 6, 2)),
        ("image_size", (4, 6.0)),
        ("image_size", True),
        ("patch_size", 4),  # does not divide the width
        ("patch_size", (3, 2)),  # does not divide the height
        ("patch_size", -2),
        ("pooling", "max"),
        ("position", "rotary"),
    ],
    recurrent_config: [
        ("width", 7),
        ("cell", "rnn"),
        ("attention", "bahdanau"),
        ("pad_id", 9),
    ],
}


@pytest.mark.parametrize("make", BAD)
def test_a_bad_value_is_named_with_what_was_received(make):
    fields = [field.name for field in dataclasses.fields(make())]
    for field, value, *others in [*BAD[make], *((field, Ellipsis) for field in fields)]:
        with pytest.raises(ValueError, match="must") as error:
            make(**{field: value}, **(others[0] if others else {}))
        assert f"{field}={value!r}" in str(error.value).split("Received: ")[1]


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


def test_sinusoidal_positions_of_images_need_a_width_of_fours():
    with pytest.raises(ValueError, match=r"`width` must be a multiple of 4.*width=6"):
        vision_config(width=6, position="sinusoidal")


def test_special_tokens_of_a_masked_model_may_have_any_ids():
    assert masked_config(pad_id=12, start_id=3, end_id=7, mask_id=0).special_ids == (0, 3, 7, 12)
