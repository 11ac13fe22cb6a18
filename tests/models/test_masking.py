"""Masking, and the search for the best span, against their definitions."""

import itertools

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.models import MaskedLanguageModelConfig, best_spans, mask_tokens
from tests.backend import on_tensorflow, tf


@st.composite
def masked_rows(draw):
    """Return a config with special tokens anywhere, rows over its vocabulary, a rate and a seed."""
    size = draw(st.integers(5, 40))
    ids = draw(st.permutations(range(size)))[:4]
    names = ("pad_id", "start_id", "end_id", "mask_id")
    config = MaskedLanguageModelConfig(size, **dict(zip(names, ids, strict=True)))
    shape = (*draw(st.sampled_from([(), (4,), (2, 3)])), draw(st.integers(0, 30)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    tokens = rng.integers(0, size, shape)
    if draw(st.booleans()):
        tokens[..., tokens.shape[-1] // 2 :] = config.pad_id
    return config, tokens, draw(st.floats(0.01, 0.99)), draw(st.integers(0, 2**31 - 1))


@given(masked_rows())
def test_what_is_chosen_and_what_becomes_of_it(case):
    config, tokens, rate, seed = case
    masked, labels, weights = (
        np.asarray(x) for x in mask_tokens(tokens, config, rate=rate, seed=seed)
    )
    assert (masked.dtype, labels.dtype, weights.dtype) == ("int32", "int32", "float32")
    assert masked.shape == labels.shape == weights.shape == tokens.shape
    np.testing.assert_array_equal(labels, tokens)
    assert set(np.unique(weights)) <= {0.0, 1.0}
    special = np.isin(tokens, config.special_ids)
    assert not weights[special].any()
    np.testing.assert_array_equal(masked[weights == 0], tokens[weights == 0])
    # What is put in is the mask or an ordinary token.
    changed = masked[masked != tokens]
    assert not np.isin(changed, [i for i in config.special_ids if i != config.mask_id]).any()
    assert np.all((masked >= 0) & (masked < config.vocabulary_size))
    # As many as the rate says, and one at least where there is any.
    ordinary, chosen = (~special).sum(-1), weights.sum(-1)
    assert np.all(
        np.abs(chosen - np.clip(rate * ordinary, np.minimum(ordinary, 1), None)) <= 0.5001
    )
    # The same seed, the same choice.
    again = mask_tokens(tokens, config, rate=rate, seed=seed)
    np.testing.assert_array_equal(again[0], masked)


def test_of_ten_eight_are_masked_one_changed_and_one_kept():
    config = MaskedLanguageModelConfig(50)
    tokens = np.random.default_rng(0).integers(4, 50, (500, 100))
    masked, _, weights = (np.asarray(x) for x in mask_tokens(tokens, config, seed=3))
    assert weights.mean() == pytest.approx(0.15)
    chosen = weights > 0
    kept = (masked == tokens)[chosen].mean()
    assert (masked == 3)[chosen].mean() == pytest.approx(0.8, abs=0.02)
    assert kept == pytest.approx(0.1 + 0.1 / 46, abs=0.015)  # a random token may be the same one
    # Every place is chosen as often, and every ordinary token put in.
    assert np.ptp(weights.mean(0)) < 0.12
    others = masked[chosen & (masked != 3) & (masked != tokens)]
    counts = np.bincount(others, minlength=50)
    assert not counts[:4].any()
    assert counts[4:].min() > 3
    assert counts.max() < 50


def test_a_row_without_ordinary_tokens_has_nothing_to_tell():
    config = MaskedLanguageModelConfig(50)
    tokens = np.array([[1, 2, 0, 0], [1, 9, 2, 0]])
    masked, _, weights = (np.asarray(x) for x in mask_tokens(tokens, config, seed=0))
    np.testing.assert_array_equal(weights, [[0, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(masked[0], tokens[0])


def test_seeds():
    config = MaskedLanguageModelConfig(50)
    tokens = np.random.default_rng(0).integers(4, 50, (4, 40))

    def masked(seed):
        return np.asarray(mask_tokens(tokens, config, seed=seed)[0])

    assert np.array_equal(masked(1), masked(1))
    assert not np.array_equal(masked(1), masked(2))
    generator = keras.random.SeedGenerator(1)
    assert not np.array_equal(masked(generator), masked(generator))
    assert not np.array_equal(masked(None), masked(None))


@on_tensorflow
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("batched", [True, False])
def test_in_a_map_of_tf_data_each_epoch_hides_others(batched):
    config = MaskedLanguageModelConfig(50)
    tokens = np.random.default_rng(0).integers(4, 50, (8, 20)).astype("int32")
    generator = keras.random.SeedGenerator(0)
    rows = tf.data.Dataset.from_tensor_slices(tokens)
    rows = rows.batch(4) if batched else rows
    rows = rows.map(lambda row: mask_tokens(row, config, seed=generator))
    epochs = [list(rows.as_numpy_iterator()) for _ in range(2)]
    for masked, labels, weights in epochs[0]:
        assert masked.shape == labels.shape == weights.shape
        assert np.all(weights.sum(-1) == 3)
    one, other = (np.concatenate([x.ravel() for x, _, _ in epoch]) for epoch in epochs)
    assert not np.array_equal(one, other)


def test_bad_arguments_are_named():
    config = MaskedLanguageModelConfig(50)
    for rate in (0, 1, -0.1, "0.1"):
        with pytest.raises(ValueError, match="`rate` must be a finite number"):
            mask_tokens(np.zeros((2, 3), int), config, rate=rate)
    with pytest.raises(ValueError, match=r"`tokens` must be integers .*float"):
        mask_tokens(np.zeros((2, 3)), config)
    with pytest.raises(ValueError, match=r"`tokens` must be integers of shape \(\.\.\., T\)"):
        mask_tokens(3, config)
    with pytest.raises(TypeError, match="`config` must be a MaskedLanguageModelConfig"):
        mask_tokens(np.zeros((2, 3), int), {"mask_id": 3})


@given(
    st.integers(1, 3), st.integers(1, 9), st.none() | st.integers(1, 12), st.integers(0, 2**31 - 1)
)
def test_best_spans_are_the_best(batch, length, most, seed):
    # Few values, so that there are ties.
    logits = np.random.default_rng(seed).integers(-2, 3, (batch, 2, length)).astype("float32")
    logits[np.random.default_rng(seed + 1).random(logits.shape) < 0.3] = -1e9
    spans = np.asarray(best_spans(logits, max_length=most))
    assert spans.shape == (batch, 2)
    for (start, end), span in zip(logits, spans, strict=True):
        pairs = itertools.product(range(length), repeat=2)
        allowed = [(s, e) for s, e in pairs if s <= e < s + (most or length)]
        assert tuple(span) == max(allowed, key=lambda pair: start[pair[0]] + end[pair[1]])
