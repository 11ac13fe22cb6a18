"""Options of MultiHeadAttention that Keras lacks: positions, normalised queries and keys, attention sinks."""

import json
from typing import Any

import keras
import numpy as np
import pytest

from heed import ops
from heed.layers import MultiHeadAttention, RelativePositionBias
from tests.backend import vjp
from tests.layers.stock import assert_close, randomise, randoms
from tests.layers.test_cache import decode

X = (2, 6, 8)
POSITIONS: dict[str, Any] = {
    "rotary": "rotary",
    "stretched rotary": {"kind": "rotary", "scaling_factor": 2.5, "interleaved": True},
    "yarn rotary": {
        "kind": "rotary",
        "scaling": {"kind": "yarn", "factor": 4.0, "original_length": 100, "beta_fast": 9.0},
    },
    "alibi": "alibi",
    "relative": "relative",
    "one-sided relative": {"kind": "relative", "bidirectional": False, "num_buckets": 8},
}
EVERYTHING: dict[str, dict[str, Any]] = {
    **{name: {"position": position} for name, position in POSITIONS.items()},
    "norm": {"qk_norm": True},
    "sinks": {"sinks": True},
    "all": {"position": "rotary", "qk_norm": True, "sinks": True, "num_key_value_heads": 2},
}
everything = pytest.mark.parametrize("options", EVERYTHING.values(), ids=EVERYTHING)


def built(shape: tuple[int, ...] = X, **options: Any) -> Any:
    layer = MultiHeadAttention(4, 6, **options)
    layer.build(shape, shape)
    randomise(layer)
    return layer


def plain(layer: Any) -> Any:
    """Return the same projections with none of the extras."""
    groups = layer.num_key_value_heads
    other = built(num_key_value_heads=groups)
    other.set_weights(layer.get_weights()[: len(other.weights)])
    return other


def test_rotary_positions_are_those_of_the_tokens() -> None:
    layer = built(position="rotary")
    query, value = randoms(X, (2, 9, 8))
    explicit = {"rotary_positions": np.arange(6), "rotary_key_positions": np.arange(9)}
    other = plain(layer)
    assert_close(layer(query, value), other(query, value, **explicit))
    assert not np.allclose(layer(query, value), other(query, value), atol=1e-3)
    shifted = {"rotary_positions": np.arange(6) + 3, "rotary_key_positions": np.arange(9)}
    assert_close(layer(query, value, **shifted), other(query, value, **shifted))


@pytest.mark.parametrize("turned", [2, 0, None])
def test_a_part_of_the_features_is_rotated_by_a_base_of_its_own(turned: int | None) -> None:
    """Against the formula in float64, with another scale too; whether the layer or the call gives positions."""
    layer = built(rotary_base=50.0, rotary_dim=turned, score_scale=0.7)
    x = randoms(X)[0]
    P = 6 if turned is None else turned
    angles = np.arange(6)[:, None, None] * 50.0 ** (-np.arange(0, P, 2) / max(P, 1))

    def rotate(heads: Any) -> np.ndarray:
        heads = np.asarray(heads, "float64")
        one, two, rest = np.split(heads, [P // 2, P], axis=-1)
        sine, cosine = np.sin(angles), np.cos(angles)
        return np.concatenate([one * cosine - two * sine, one * sine + two * cosine, rest], -1)

    scores = np.einsum("btnh,bsnh->bnts", rotate(layer.query_dense(x)), rotate(layer.key_dense(x)))
    weights = np.exp(0.7 * scores)
    weights /= weights.sum(-1, keepdims=True)
    values = np.asarray(layer.value_dense(x), "float64")
    heads = np.einsum("bnts,bsnh->btnh", weights, values).astype("float32")
    given = {"rotary_positions": np.arange(6), "return_attention_scores": True}
    output, found = layer(x, x, **given)
    assert_close(output, layer.output_dense(heads))
    assert_close(found, weights.astype("float32"))
    options = json.loads(json.dumps({**layer.get_config(), "position": "rotary"}))
    for _ in range(2):
        own = MultiHeadAttention.from_config(options)
        own.build(X, X)
        own.set_weights(layer.get_weights())
        assert_close(own(x, x), output)
        options = json.loads(json.dumps(own.get_config()))


def test_more_features_than_there_are_cannot_be_rotated() -> None:
    with pytest.raises(ValueError, match="`rotary_dim` must be at most"):
        MultiHeadAttention(4, 6, rotary_dim=8)
    wide = MultiHeadAttention(2, 5, rotary_dim=4, position="rotary")  # the rest may be odd
    assert wide(*randoms(X, X)).shape == X


DYNAMIC = {"kind": "dynamic", "original_length": 4}


@pytest.mark.parametrize(
    "rotation",
    [
        {"max_wavelength": 100.0, "scaling_factor": 2.5, "interleaved": True},
        {"scaling": {"kind": "linear", "factor": 2.0}},
        {"scaling": {"kind": "ntk", "factor": 2.0}},
        {"scaling": {"kind": "llama3", "original_length": 20, "factor": 3.0}},
        {"scaling": POSITIONS["yarn rotary"]["scaling"]},
        {"scaling": DYNAMIC},
    ],
    ids=str,
)
def test_stretched_rotation(rotation: dict[str, Any]) -> None:
    """Against the op, on the layer's own projections; its config is complete."""
    layer = built(position={"kind": "rotary", **rotation})
    x = randoms(X)[0]
    query, key = (
        ops.rotary_embedding(dense(x), **rotation) for dense in (layer.query_dense, layer.key_dense)
    )
    output = layer(x, x)
    expected = ops.dot_product_attention(query, key, layer.value_dense(x))
    assert_close(output, layer.output_dense(expected))
    short = built(position="rotary")
    short.set_weights(layer.get_weights())
    assert not np.allclose(output, short(x, x), atol=1e-4)
    config = json.loads(json.dumps(layer.get_config()))
    twin = MultiHeadAttention.from_config(config)
    twin.build(X, X)
    twin.set_weights(layer.get_weights())
    np.testing.assert_array_equal(twin(x, x), output)


def test_dynamic_scaling_is_the_same_for_queries_and_keys() -> None:
    layer = built(position={"kind": "rotary", "scaling": DYNAMIC})
    query, value = randoms(X, (2, 9, 8))
    rotated = [
        ops.rotary_embedding(dense(x), scaling=DYNAMIC, length=9)
        for dense, x in ((layer.query_dense, query), (layer.key_dense, value))
    ]
    expected = ops.dot_product_attention(*rotated, layer.value_dense(value))
    assert_close(layer(query, value), layer.output_dense(expected))
    explicit = {"rotary_positions": np.arange(6), "rotary_key_positions": np.arange(9)}
    assert_close(layer(query, value, **explicit), layer.output_dense(expected))


def test_dynamic_scaling_refuses_a_cache() -> None:
    layer = built(position={"kind": "rotary", "scaling": DYNAMIC})
    x = randoms(X)[0]
    message = "`cache` cannot be used where the rotation depends on the length.*dynamic"
    with pytest.raises(ValueError, match=message):
        layer(x, x, cache=layer.make_cache(2, 8), cache_index=0)
    with pytest.raises(ValueError, match=message):
        layer.project_cache(x)


def test_alibi() -> None:
    layer = built(position="alibi")
    query, value = randoms(X, (2, 9, 8))
    other = plain(layer)
    slopes = ops.alibi_slopes(4)
    assert_close(layer(query, value), other(query, value, alibi_slopes=slopes))
    assert_close(
        layer(query, value, alibi_slopes=slopes * 2), other(query, value, alibi_slopes=slopes * 2)
    )


def test_relative_bias_is_learned_and_joins_another() -> None:
    options = {"bidirectional": False, "num_buckets": 8, "max_distance": 20}
    layer = built(position={"kind": "relative", **options})
    query, value = randoms(X, (2, 9, 8))
    bias_layer = RelativePositionBias(4, **options)
    bias_layer.build()
    bias_layer.set_weights(layer.get_weights()[-1:])
    bias = bias_layer(query_length=6, key_length=9)
    assert_close(layer(query, value), plain(layer)(query, value, position_bias=bias))
    more = randoms((4, 6, 9))[0]
    assert_close(
        layer(query, value, position_bias=more),
        plain(layer)(query, value, position_bias=bias + more),
    )
    table = layer.trainable_variables[-1]
    _, pull = vjp(lambda: keras.ops.sum(layer(query, value) ** 2), variables=[table])
    assert np.any(np.asarray(pull()[0]))


def test_norm_of_queries_and_keys() -> None:
    layer = built(qk_norm=True, num_key_value_heads=2)
    x = randoms(X)[0]

    def norm(projected: Any, scale: Any) -> Any:
        rms = np.sqrt(np.mean(np.square(projected), -1, keepdims=True) + 1e-6)
        return projected / rms * np.asarray(scale)

    query = norm(layer.query_dense(x), layer._query_norm.scale)
    key = norm(layer.key_dense(x), layer._key_norm.scale)
    expected = ops.dot_product_attention(query, key, layer.value_dense(x))
    assert_close(layer(x, x), layer.output_dense(expected))
    assert [tuple(w.shape) for w in layer.weights[-2:]] == [(6,), (6,)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_sinks_are_one_more_score(dropout: float) -> None:
    """A softmax over the scores and s, of which the last weight goes nowhere."""
    layer = built(sinks=True, dropout=dropout, num_key_value_heads=2)
    x = randoms(X)[0]
    mask = np.tri(6, dtype=bool)
    output, weights = layer(x, x, attention_mask=mask, return_attention_scores=True)
    query, key, value = (
        np.asarray(dense(x)) for dense in (layer.query_dense, layer.key_dense, layer.value_dense)
    )
    key, value = (np.repeat(y, 2, axis=2) for y in (key, value))
    logits = np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(6)
    logits = np.where(mask, logits, -np.inf)
    sinks = np.broadcast_to(np.asarray(layer.sinks)[None, :, None, None], (2, 4, 6, 1))
    expected = np.asarray(
        keras.ops.softmax(keras.ops.convert_to_tensor(np.concatenate([logits, sinks], -1)))
    )[..., :-1]
    np.testing.assert_allclose(weights, expected, atol=1e-5)
    assert np.all(np.sum(np.asarray(weights), -1) < 1)
    heads = np.einsum("bnts,bsnv->btnv", expected, value)
    assert_close(output, layer.output_dense(heads.astype("float32")))


def test_sinks_learn_and_rows_without_keys_stay_zero() -> None:
    layer = built(sinks=True)
    x = randoms(X)[0]
    mask = np.ones((6, 6), bool)
    mask[2] = False
    output, pull = vjp(
        lambda: layer(x, x, attention_mask=mask), variables=layer.trainable_variables
    )
    gradients = pull(2 * output)
    assert all(np.all(np.isfinite(g)) for g in gradients)
    assert np.all(np.asarray(gradients[-1]))
    bias = np.asarray(layer.output_dense.bias)
    np.testing.assert_allclose(output[0, 2], bias, atol=1e-6)


@everything
def test_steps_with_a_cache_equal_the_whole(options: dict[str, Any]) -> None:
    layer = built(**options)
    x = randoms(X)[0]
    expected = layer(x, x, use_causal_mask=True)
    for steps in ([1] * 6, [2, 1, 3]):
        assert_close(decode(layer, x, steps, length=8)[0], expected)


@everything
def test_cross_attention_from_a_projected_cache(options: dict[str, Any]) -> None:
    layer = built(**options)
    query, value = randoms(X, (2, 9, 8))
    cached, _ = layer(query, None, cache=layer.project_cache(value))
    assert_close(cached, layer(query, value))


def test_without_extras_there_are_no_more_variables() -> None:
    assert len(built().weights) == 8
    extras = built(qk_norm=True, sinks=True, position="relative")
    names = [w.path.split("/", 1)[1] for w in extras.weights]
    assert {"sinks", "query_norm/scale", "key_norm/scale", "relative_bias/embeddings"} <= set(names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position": "rope"}, "`position` must be one of rotary, alibi, relative.*'rope'"),
        ({"position": 3}, "`position` must be one of"),
        ({"position": {"wavelength": 3}}, "`position` must be one of"),
        ({"position": {"kind": "rotary", "base": 3}}, "has the options .*max_wavelength.*base"),
        ({"position": "rotary", "key_dim": 5}, "`key_dim` must be even.*key_dim=5"),
        ({"position": {"kind": "rotary", "scaling": "yarn"}}, "`scaling` must be a dictionary"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"num_heads": 2, "key_dim": 4, **options})


def test_positions_need_one_axis() -> None:
    layer = MultiHeadAttention(2, 4, position="alibi")
    with pytest.raises(ValueError, match=r"`position` needs inputs of the shape \(B, T, D\)"):
        layer.build((2, 3, 4, 8), (2, 3, 4, 8))
