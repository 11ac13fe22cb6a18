import keras
import numpy as np
import pytest

import heed
from heed.layers import (
    RelativePositionBias,
    TokenEmbedding,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from heed.layers.normalization import RMSNormalization
from tests.slow import slow

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 8)).astype("float32")
ENCODED = RNG.normal(size=(3, 7, 8)).astype("float32")
TOKENS = np.arange(5) < np.array([5, 3, 1])[:, None]
SOURCE = np.arange(7) < np.array([7, 2, 4])[:, None]
POSITIONS = {
    "none": lambda T, S, start: {},
    "rotary": lambda T, S, start: {"rotary_positions": np.arange(T) + start},
    "alibi": lambda T, S, start: {"alibi_slopes": heed.ops.alibi_slopes(2)},
    "relative": lambda T, S, start: {
        "position_bias": BIAS(query_length=T, key_length=S, start_index=start)
    },
}
keras.utils.set_random_seed(0)
BIAS = RelativePositionBias(2, embeddings_initializer="random_normal")


def encoder(**options):
    return TransformerEncoderLayer(2, 16, **options)


def decoder(**options):
    return TransformerDecoderLayer(2, 16, **options)


def normalise(norm, x):
    x = np.asarray(x, "float64")
    if isinstance(norm, RMSNormalization):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.epsilon) * np.asarray(norm.scale)
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.epsilon)
    return x * np.asarray(norm.gamma) + np.asarray(norm.beta)


def formula(layer, x, encoded):
    """Add each part to the sequence, by the definition."""
    read, parts = x, {"feed_forward": layer.feed_forward}
    if isinstance(layer, TransformerEncoderLayer):
        parts = {"attention": lambda y: layer.attention(y, y), **parts}
    else:
        parts = {
            "self_attention": lambda y: layer.self_attention(y, y, use_causal_mask=True),
            "encoded_attention": lambda y: layer.encoded_attention(y, encoded),
            **parts,
        }
    for name, part in parts.items():
        norm = getattr(layer, f"{name}_norm")
        y = read if layer.parallel and name == "feed_forward" else x
        y = part((normalise(norm, y) if layer.norm_first else y).astype("float32"))
        if layer.post_norms:
            post_norm = name.replace("encoded", "cross") + "_post_norm"
            y = normalise(getattr(layer, post_norm), y)
        x = x + np.asarray(y)
        x = x if layer.norm_first else normalise(norm, x)
    return x


@pytest.mark.parametrize("make", [encoder, decoder])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_first": False},
        {"normalization": "rms", "norm_epsilon": 0.1},
        {"post_norms": True},
        {"post_norms": True, "norm_first": False},
        {"parallel": True},
    ],
    ids=str,
)
def test_a_layer_follows_the_formula(make, options):
    layer = make(**options)
    arrays = (X,) if make is encoder else (X, ENCODED)
    layer(*arrays)
    for weight in layer.weights:
        weight.assign(weight + 0.3 * RNG.normal(size=weight.shape))
    np.testing.assert_allclose(layer(*arrays), formula(layer, X, ENCODED), atol=1e-5)


@pytest.mark.parametrize("make", [encoder, decoder])
def test_options_reach_the_parts_and_the_config(make):
    layer = make(gated=True, qk_norm=True, sinks=True, normalization="rms")
    args = (X, ENCODED) if make is decoder else (X,)
    expected = layer(*args)
    names = {x.path.split("/", 1)[1] for x in layer.weights}
    own = "self_attention" if make is decoder else "attention"
    assert {f"{own}/sinks", f"{own}/query_norm/scale", "feed_forward/up/kernel"} <= names
    twin = type(layer).from_config(layer.get_config())
    twin(*args)
    twin.set_weights(layer.get_weights())
    np.testing.assert_array_equal(twin(*args), expected)


def with_mask(x, mask):
    x = keras.ops.convert_to_tensor(x)
    x._keras_mask = keras.ops.convert_to_tensor(mask)
    return x


@pytest.mark.parametrize("kind", ["explicit", "implicit", "attention", "Mask", "with a bias"])
def test_padding_does_not_reach_the_tokens_of_an_encoder_layer(kind):
    layer = encoder()
    changed = np.where(TOKENS[:, :, None], X, 9.0).astype("float32")

    def run(x):
        if kind == "explicit":
            return layer(x, mask=TOKENS)
        if kind == "implicit":
            return layer(with_mask(x, TOKENS))
        if kind == "attention":
            return layer(x, attention_mask=np.broadcast_to(TOKENS[:, None, :], (3, 5, 5)))
        if kind == "Mask":
            return layer(x, attention_mask=heed.Mask.lengths(TOKENS.sum(1)))
        # A second tensor among the arguments: Keras does not fill `mask` in, which then is what the tensor carries.
        return layer(with_mask(x, TOKENS), position_bias=np.zeros((1, 2, 5, 5), "float32"))

    one, other = np.asarray(run(X)), np.asarray(run(changed))
    np.testing.assert_allclose(one[TOKENS], other[TOKENS], atol=1e-6)
    assert np.abs(np.asarray(layer(X))[1, 0] - one[1, 0]).max() > 1e-4  # the mask does something
    np.testing.assert_allclose(one[1, 0], layer(X[1:2, :3])[0, 0], atol=1e-6)


@pytest.mark.parametrize("kind", ["explicit", "implicit", "attention"])
def test_padding_of_the_encoded_does_not_reach_a_decoder_layer(kind):
    layer = decoder()
    changed = np.where(SOURCE[:, :, None], ENCODED, 9.0).astype("float32")

    def run(encoded):
        if kind == "explicit":
            return layer(X, encoded, encoded_mask=SOURCE)
        if kind == "implicit":
            return layer(X, with_mask(encoded, SOURCE))
        return layer(X, encoded, cross_attention_mask=np.tile(SOURCE[:, None, :], (1, 5, 1)))

    np.testing.assert_allclose(run(ENCODED), run(changed), atol=1e-6)
    assert np.abs(np.asarray(run(ENCODED)) - np.asarray(layer(X, ENCODED))).max() > 1e-4


@pytest.mark.parametrize("kind", ["explicit", "implicit"])
def test_padding_of_the_target_does_not_reach_its_tokens(kind):
    layer = decoder(cross_attention=False)
    left = TOKENS[:, ::-1]  # padding first, so that causality alone does not hide it
    changed = np.where(left[:, :, None], X, 9.0).astype("float32")

    def run(x):
        return layer(x, inputs_mask=left) if kind == "explicit" else layer(with_mask(x, left))

    one, other = np.asarray(run(X)), np.asarray(run(changed))
    np.testing.assert_allclose(one[left], other[left], atol=1e-6)


@pytest.mark.parametrize("called", ["by its method", "by Keras"])
@pytest.mark.parametrize("cached", [False, True])
def test_the_mask_that_the_encoded_carry_counts(cached, called):
    layer = decoder()
    layer.build(X.shape, ENCODED.shape)
    call, inputs = (
        layer.call if called == "by its method" else layer,
        keras.ops.convert_to_tensor(X),
    )
    changed = np.where(SOURCE[:, :, None], ENCODED, 9.0).astype("float32")

    def run(encoded):
        carries = with_mask(encoded, SOURCE)
        if not cached:
            return call(inputs, carries)
        cache = layer.make_cache(3, 5, encoded)
        return call(inputs, carries, cache=cache, cache_index=0)[0]

    np.testing.assert_allclose(run(ENCODED), run(changed), atol=1e-6)


@pytest.mark.parametrize("kind", ["of the new tokens", "of all that is cached", "implicit"])
def test_a_mask_of_the_inputs_counts_with_a_cache(kind):
    layer = decoder(cross_attention=False)
    layer.build(X.shape)
    left = TOKENS[:, ::-1]  # padding first, so that causality alone does not hide it
    changed = np.where(left[:, :, None], X, 9.0).astype("float32")
    wide = np.concatenate([left, np.ones((3, 2), bool)], 1)

    def run(x):
        cache = {"cache": layer.make_cache(3, 7), "cache_index": 0}
        if kind == "implicit":
            return layer(with_mask(x, left), **cache)[0]
        mask = left if kind == "of the new tokens" else wide
        return layer(x, inputs_mask=mask, **cache)[0]

    one, other = np.asarray(run(X)), np.asarray(run(changed))
    np.testing.assert_allclose(one[left], other[left], atol=1e-6)
    np.testing.assert_allclose(one[left], np.asarray(layer(X, inputs_mask=left))[left], atol=1e-5)


def test_masks_travel_from_an_embedding_through_a_functional_model():
    ids = keras.Input((None,), dtype="int32")
    x = TokenEmbedding(9, 8)(ids)
    layer = encoder()
    model = keras.Model(ids, layer(x))
    short, long = np.array([[3, 4]]), np.array([[3, 4, 0, 0]])
    np.testing.assert_allclose(model(long)[:, :2], model(short), atol=1e-6)


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_decoder_layer_is_causal(positions):
    layer = decoder()
    arguments = POSITIONS[positions](5, 5, 0)
    changed = X.copy()
    changed[:, 3:] = 1.0
    one, other = (np.asarray(layer(x, ENCODED, **arguments)) for x in (X, changed))
    np.testing.assert_allclose(one[:, :3], other[:, :3], atol=1e-6)
    assert np.abs(one[:, 3:] - other[:, 3:]).max() > 1e-2


@pytest.mark.parametrize("positions", list(POSITIONS)[1:])
@pytest.mark.parametrize("make", [encoder, lambda: decoder(cross_attention=False)])
def test_positions_reach_the_self_attention(make, positions):
    layer = make()
    plain, placed = layer(X), layer(X, **POSITIONS[positions](5, 5, 0))
    assert np.abs(np.asarray(plain) - np.asarray(placed)).max() > 1e-5


GROUPED = {"norm_first": False, "num_key_value_heads": 1}
WINDOW = {"sliding_window": 2, "soft_cap": 3.0}


@pytest.mark.parametrize(
    ("options", "positions"),
    [
        *(({}, positions) for positions in POSITIONS),
        (GROUPED, "none"),
        (WINDOW, "rotary"),
        *slow((GROUPED, positions) for positions in POSITIONS if positions != "none"),
        *slow((WINDOW, positions) for positions in POSITIONS if positions != "rotary"),
    ],
    ids=str,
)
def test_decoding_with_a_cache_is_the_whole_call(options, positions):
    layer = decoder(**options)
    whole = layer(X, ENCODED, encoded_mask=SOURCE, **POSITIONS[positions](5, 5, 0))
    cache = layer.make_cache(3, 6, ENCODED)
    parts = []
    for start, end in ((0, 2), (2, 3), (3, 5)):
        output, cache = layer(
            X[:, start:end],
            encoded_mask=SOURCE,
            cache=cache,
            cache_index=start,
            **POSITIONS[positions](end - start, 6, start),
        )
        parts.append(output)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-5)


def test_beams_read_the_cache_of_their_sentence():
    layer = decoder()
    beams = RNG.normal(size=(6, 1, 8)).astype("float32")  # two for each of the three sentences
    layer.build(X.shape, ENCODED.shape)
    cache = layer.make_cache(6, 4, ENCODED)
    assert tuple(cache["cross"]["key"].shape) == (3, 7, 2, 4)
    repeated = layer.make_cache(6, 4, np.repeat(ENCODED, 2, axis=0))
    mask = np.repeat(SOURCE, 2, axis=0)
    for length in (1, 3):
        queries = np.repeat(beams, length, axis=1) * np.arange(1, length + 1)[:, None]
        each = {"cache_index": 0, "return_attention_scores": True}
        output, scores, _ = layer(queries, encoded_mask=SOURCE, cache=cache, **each)
        expected, wanted, _ = layer(queries, encoded_mask=mask, cache=repeated, **each)
        np.testing.assert_allclose(output, expected, atol=1e-6)
        assert tuple(scores["cross"].shape) == (6, 2, length, 7)
        np.testing.assert_allclose(scores["cross"], wanted["cross"], atol=1e-6)


def test_scores_of_a_decoder_layer_with_and_without_a_cache():
    layer = decoder()
    output, scores = layer(X, ENCODED, return_attention_scores=True)
    assert tuple(scores["self"].shape) == (3, 2, 5, 5)
    assert tuple(scores["cross"].shape) == (3, 2, 5, 7)
    np.testing.assert_array_equal(output, layer(X, ENCODED))
    cache = layer.make_cache(3, 6, ENCODED)
    output, cached, cache = layer(X, cache=cache, cache_index=0, return_attention_scores=True)
    np.testing.assert_allclose(cached["self"][..., :5], scores["self"], atol=1e-6)
    np.testing.assert_allclose(cached["cross"], scores["cross"], atol=1e-6)
    assert set(cache) == {"self", "cross"}


def test_a_layer_without_cross_attention():
    layer = decoder(cross_attention=False)
    output, scores = layer(X, return_attention_scores=True)
    assert tuple(output.shape) == X.shape
    assert set(scores) == {"self"}
    output, cache = layer(X, cache=layer.make_cache(3, 5), cache_index=0)
    assert set(cache) == {"self"}
    np.testing.assert_allclose(output, layer(X), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "rate"),
    [
        (encoder, "dropout"),
        (decoder, "attention_dropout"),
        *slow([(encoder, "attention_dropout"), (decoder, "dropout")]),
    ],
)
def test_dropout_acts_in_training_only_and_follows_its_seed(make, rate):
    inputs = (X,) if make is encoder else (X, ENCODED)
    layer, twin = make(**{rate: 0.5}, seed=3), make(**{rate: 0.5}, seed=3)
    np.testing.assert_array_equal(layer(*inputs), layer(*inputs, training=False))
    twin(*inputs)
    twin.set_weights(layer.get_weights())
    dropped = np.asarray(layer(*inputs, training=True))
    assert np.abs(dropped - np.asarray(layer(*inputs))).max() > 1e-3
    np.testing.assert_array_equal(twin(*inputs, training=True), dropped)
    assert np.any(np.asarray(layer(*inputs, training=True)) != dropped)


@pytest.mark.parametrize(("make", "count"), [(encoder, 4), (decoder, 6)])
def test_no_two_parts_drop_alike(make, count):
    """With one seed for all of them a residual would lose the same features at each step."""
    layer = make(dropout=0.5, attention_dropout=0.5, seed=3)
    layer(*((X,) if make is encoder else (X, ENCODED)))
    parts = [x for x in layer._flatten_layers() if isinstance(x, keras.layers.Dropout)]
    dropped = {np.asarray(part(np.ones(64, "float32"), training=True)).tobytes() for part in parts}
    assert len(dropped) == len(parts) == count


@pytest.mark.parametrize("make", [encoder, decoder])
def test_the_activation_is_that_of_the_arguments(make):
    layer = make(activation="tanh")
    layer(*((X,) if make is encoder else (X, ENCODED)))
    hidden, output = (
        [np.asarray(weight, "float64") for weight in dense.get_weights()]
        for dense in (layer.feed_forward.hidden_dense, layer.feed_forward.output_dense)
    )
    expected = np.tanh(X @ hidden[0] + hidden[1]) @ output[0] + output[1]
    np.testing.assert_allclose(layer.feed_forward(X), expected, atol=1e-5)


def test_an_encoder_layer_may_be_causal():
    layer = encoder()
    changed = X.copy()
    changed[:, 3:] = 1.0
    one, other = (layer(x, use_causal_mask=True) for x in (X, changed))
    np.testing.assert_allclose(one[:, :3], other[:, :3], atol=1e-6)


def test_a_decoder_layer_need_not_be_causal():
    layer = decoder()
    changed = X.copy()
    changed[:, 3:] = 1.0
    one, other = (np.asarray(layer(x, ENCODED, use_causal_mask=False)) for x in (X, changed))
    assert np.abs(one[:, :3] - other[:, :3]).max() > 1e-3


def test_key_and_value_widths_of_their_own():
    layer = encoder(key_dim=3, value_dim=5)
    assert tuple(layer(X).shape) == X.shape
    assert tuple(layer.attention.value_dense.kernel.shape) == (8, 2, 5)


@pytest.mark.parametrize("make", [encoder, decoder])
def test_a_width_that_the_heads_do_not_divide(make):
    with pytest.raises(ValueError, match=r"`num_heads` must divide .* num_heads=2, .*7"):
        make()(X[..., :7], *((ENCODED,) if make is decoder else ()))


def test_a_cache_needs_a_built_layer():
    with pytest.raises(ValueError, match="`make_cache` needs"):
        decoder().make_cache(3, 5)


def test_a_decoder_layer_needs_something_to_read():
    with pytest.raises(ValueError, match="`encoded` must be given"):
        decoder()(X)
