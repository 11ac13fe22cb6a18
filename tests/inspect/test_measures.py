"""Measures of heads against plain NumPy, on planted and random weights."""

from __future__ import annotations

import numpy as np
import pytest

from heed.inspect import Capture, by_head, capture, head_similarity, rollout
from tests.inspect.models import chain, sequence
from tests.inspect.test_capture_object import planted, random_weights
from tests.tolerances import assert_statistics


def test_by_head_finds_planted_heads():
    capture = planted()
    assert by_head(capture, "first")["a"].round(3).tolist()[:5] == [1, 0.25, 0.2, 0, 0.2]
    assert by_head(capture, "previous")["a"].round(3).tolist()[:5] == [0.2, 1, 0, 0, 0.16]
    assert by_head(capture, "same")["a"].round(3).tolist()[:5] == [0.2, 0, 1, 0, 0.2]
    assert by_head(capture, "next")["a"].round(3).tolist()[:5] == [0, 0, 0, 1, 0.16]
    assert by_head(capture, "distance")["a"].round(3).tolist()[:5] == [2, 1, 0, 1, 1.6]
    assert by_head(capture, "entropy")["a"].round(3).tolist()[:5] == [0, 0, 0, 0, 1.609]
    assert np.isnan(by_head(capture, "entropy")["a"][5])  # it attends to nothing


def test_by_head_averages_over_the_chosen_queries():
    weights = random_weights(2, 3, 4, 4)
    capture = Capture({"a": weights, "b": random_weights(2, 1, 5, 4)}, {"a": "self", "b": "cross"})
    where = np.array([[True, True, False, False], [True, True, True, False]])
    means = by_head(capture, "distance", where=where)
    values = capture.distance["a"]
    by_hand = [(values[0, n, :2].sum() + values[1, n, :3].sum()) / 5 for n in range(3)]
    np.testing.assert_allclose(means["a"], by_hand)
    np.testing.assert_allclose(means["b"], capture.distance["b"].mean((0, 2)))
    with pytest.raises(ValueError, match=r"\(B, T\) of a layer, \(2, 4\) or \(2, 5\).*\(2, 3\)"):
        by_head(capture, "distance", where=where[:, :3])
    with pytest.raises(ValueError, match="`measure` must be one of"):
        by_head(capture, "importance")


def test_by_head_of_a_pooled_picture_is_exact():
    model, x = chain(), sequence()
    whole, pooled = capture(model, x), capture(model, x, size=2)
    for measure in ("entropy", "distance", "first", "previous", "same", "next"):
        for name in whole:
            means = (by_head(one, measure)[name] for one in (pooled, whole))
            assert_statistics(*means, "float32", f"{measure} of {name}")


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> float:
    def divergence(a: np.ndarray, b: np.ndarray) -> float:
        return sum(x * np.log2(x / y) for x, y in zip(a, b, strict=True) if x > 0)

    m = (p + q) / 2
    return (divergence(p, m) + divergence(q, m)) / 2


def test_head_similarity_by_hand():
    weights, others = random_weights(2, 3, 4, 6), random_weights(2, 2, 4, 6, seed=1)
    weights[1, :, 2] = 0  # attends to nothing, and is left out
    capture = Capture({"a": weights, "b": others}, {"a": "cross", "b": "cross"})
    similarity = head_similarity(capture, "a", "b")
    assert similarity.shape == (3, 2)
    for n, m in np.ndindex(3, 2):
        rows = [(b, i) for b, i in np.ndindex(2, 4) if (b, i) != (1, 2)]
        mean = np.mean([jensen_shannon(weights[b, n, i], others[b, m, i]) for b, i in rows])
        np.testing.assert_allclose(similarity[n, m], 1 - mean, atol=1e-12)
    own = head_similarity(capture, "a")
    np.testing.assert_allclose(own, own.T, atol=1e-12)
    np.testing.assert_allclose(np.diag(own), 1, atol=1e-12)


def test_head_similarity_of_planted_heads():
    similarity = head_similarity(planted(), "a")
    assert similarity[1, 3] == pytest.approx(0, abs=1e-12)  # previous and next share no key
    assert np.isnan(similarity[5]).all()
    with pytest.raises(ValueError, match="`layer` must be one of 'a'"):
        head_similarity(planted(), "b")
    w = random_weights(1, 2, 3, 4)
    capture = Capture({"a": w, "b": w[:, :, :2]}, {"a": "cross", "b": "cross"})
    with pytest.raises(ValueError, match=r"same B, T and S.*\(1, 2, 2, 4\) of 'b'"):
        head_similarity(capture, "a", "b")


def test_rollout_by_hand():
    one, two = random_weights(2, 3, 5, 5), random_weights(2, 2, 5, 5, seed=1)
    one[0, :, 1] = 0  # attends to nothing, and keeps its own token
    capture = Capture({"a": one, "b": two}, {"a": "self", "b": "causal"})
    flow = rollout(capture, residual=0.3)
    for b in range(2):
        first = 0.7 * one[b].mean(0) + 0.3 * np.eye(5)
        if b == 0:
            first[1] = np.eye(5)[1]
        second = 0.7 * two[b].mean(0) + 0.3 * np.eye(5)
        np.testing.assert_allclose(flow["a"][b], first, atol=1e-12)
        np.testing.assert_allclose(flow["b"][b], second @ first, atol=1e-12)
    np.testing.assert_allclose(flow["b"].sum(-1), 1)
    np.testing.assert_allclose(rollout(capture, ["b"])["b"], 0.5 * two.mean(1) + 0.5 * np.eye(5))


def test_rollout_refuses_meaningless_arguments():
    w = random_weights(1, 2, 4, 4)
    capture = Capture(
        {"a": w, "cross": w, "short": w[:, :, :2, :2], "pooled": w},
        {"a": "self", "cross": "cross", "short": "self", "pooled": "self"},
        lengths={"pooled": (8, 8)},
    )
    for layers, text in [
        (None, "'cross', which is cross-attention"),
        (["a", "pooled"], "'pooled', which is not whole"),
        (["a", "short"], r"the same B and T.*\(1, 2\), \(1, 4\)"),
        ([], "no layer"),
        (["b"], "`layer` must be one of 'a'"),
    ]:
        with pytest.raises(ValueError, match=text):
            rollout(capture, layers)
    with pytest.raises(ValueError, match=r"`residual` must be in \[0, 1\]"):
        rollout(capture, ["a"], residual=1.5)
