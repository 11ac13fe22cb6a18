"""Several models that decode as one."""

import numpy as np
import pytest

from heed.models import (
    Decodable,
    Ensemble,
    explain_generate,
    generate,
)
from tests.models.builders import small_model, small_recurrent, sources


def decode(model, **options):
    return np.asarray(generate(model, sources(), max_length=6, **options))


def means(models, source, tokens):
    """Return the mean of log p of the token at each place, but padding and the start."""
    batch = {
        "source": source,
        "target": np.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=1),
    }
    logits = [np.asarray(model(batch)).astype("float64") for model in models]
    mean = np.mean([x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in logits], axis=0)
    mean[..., [0, 1]] = -np.inf
    return mean


def test_tokens_are_those_of_the_mean():
    """Of models of two kinds."""
    models = [small_model(seed=4, end_bias=0.7), small_recurrent(seed=2)]
    both = Ensemble(models)
    assert isinstance(both, Decodable)
    assert explain_generate(both).implementation == "graph"
    tokens = decode(both)
    best = means(models, sources(), tokens).argmax(axis=-1)
    for row, found in zip(best, tokens, strict=True):
        length = int(np.argmax(found == 2)) + 1 if 2 in found else 6
        np.testing.assert_array_equal(found[:length], row[:length])
        assert not found[length:].any()
    assert any((tokens != decode(one)).any() for one in models)


@pytest.mark.slow
def test_other_ways_find_the_same_tokens():
    both = Ensemble([small_model(seed=4, end_bias=0.7), small_recurrent(seed=2)])
    tokens = decode(both)
    np.testing.assert_array_equal(tokens, decode(both, use_cache=False))
    np.testing.assert_array_equal(tokens, decode(both, method="beam", beam_size=1))


@pytest.mark.slow
def test_a_model_and_itself_is_that_model():
    model = small_model(seed=4, end_bias=0.7)
    options = {"method": "beam", "beam_size": 3, "num_results": 2}
    twice = decode(Ensemble([model, model]), **options)
    np.testing.assert_array_equal(twice, decode(model, **options))


def test_scores_and_coverage_are_means():
    """Of a model and itself: its own."""
    model = small_model(seed=4, end_bias=0.7)
    options = {"method": "beam", "beam_size": 2, "coverage_penalty": 0.5, "return_scores": True}
    twice = generate(Ensemble([model, model]), sources(), max_length=6, **options)
    once = generate(model, sources(), max_length=6, **options)
    np.testing.assert_array_equal(twice[0], once[0])
    np.testing.assert_allclose(twice[1], once[1], rtol=1e-5)


def test_models_that_do_not_go_together():
    with pytest.raises(ValueError, match="must hold a model or more"):
        Ensemble([])
    with pytest.raises(ValueError, match="must have the same target tokens"):
        Ensemble([small_model(), small_model(target_vocabulary_size=10)])
    with pytest.raises(TypeError, match="without build"):
        Ensemble([small_model(), 3])
    bounds = [small_model(position="learned", max_length=length) for length in (9, 7)]
    assert Ensemble([*bounds, small_model()]).config.longest_target == 7
