"""MultiHeadAttention in the place of Keras' layers: weights, files, configs, LoRA, int8, subclasses."""

import keras
import numpy as np
import pytest

from heed.layers import MultiHeadAttention, from_keras
from tests.layers.stock import assert_close, pair, randomise, randoms


@pytest.mark.parametrize("groups", [None, 1, 2])
@pytest.mark.parametrize("use_bias", [True, False])
def test_weights_and_their_files_interchange(groups, use_bias, tmp_path):
    options = {"use_bias": use_bias, "dropout": 0.5}
    if groups:
        options["num_key_value_heads"] = groups
    shapes = [(2, 5, 8), (2, 7, 8)]
    ours, stock = pair(shapes, num_heads=4, **options)
    names = [[w.path.split("/", 1)[1] for w in layer.weights] for layer in (ours, stock)]
    assert names[0] == names[1]
    assert [w.shape for w in ours.weights] == [w.shape for w in stock.weights]

    target_weights = [w + 1 for w in stock.get_weights()]
    ours.set_weights(target_weights)
    stock.set_weights(ours.get_weights())
    for one, other in zip(stock.get_weights(), target_weights, strict=True):
        np.testing.assert_array_equal(one, other)
    if groups:
        return  # Keras names the layers in a file by their class

    def model(layer):
        inputs = [keras.Input((None, 8)), keras.Input((None, 8))]
        return keras.Model(inputs, layer(*inputs))

    for source, target in ((ours, stock), (stock, ours)):
        randomise(source, seed=3)
        randomise(target, seed=4)
        path = tmp_path / f"{type(source).__module__}.weights.h5"
        model(source).save_weights(path)
        model(target).load_weights(path)
        for one, other in zip(source.get_weights(), target.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_config_of_keras_makes_a_layer():
    stock = keras.layers.MultiHeadAttention(
        3, 4, value_dim=5, dropout=0.1, attention_axes=(1,), kernel_regularizer="l2", name="here"
    )
    ours = MultiHeadAttention.from_config(stock.get_config())
    assert stock.get_config().items() <= ours.get_config().items()


def test_lora(tmp_path):
    def model():
        inputs = keras.Input((5, 8))
        layer = MultiHeadAttention(2, 4, use_bias=False, num_key_value_heads=1)
        return keras.Model(inputs, layer(inputs, inputs)), layer

    x = randoms((4, 5, 8))[0]
    tuned, layer = model()
    before = tuned(x)
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense):
        dense.enable_lora(2)
    assert len(layer.trainable_variables) == 7
    assert len(layer.non_trainable_variables) == 3
    assert_close(tuned(x), before)
    tuned.compile("sgd", "mse")
    tuned.fit(x, x, epochs=2, verbose=0)
    after = tuned(x)
    assert not np.allclose(after, before, atol=1e-5)
    tuned.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(x), after)
    # Into a layer without LoRA its weights come merged.
    tuned.save_weights(tmp_path / "model.weights.h5")
    plain, _ = model()
    plain.load_weights(tmp_path / "model.weights.h5")
    assert_close(plain(x), after)


@pytest.mark.slow
def test_int8_quantisation():
    x = randoms((2, 5, 8))[0]
    layer = MultiHeadAttention(2, 4, use_bias=False)
    before = layer(x, x)
    for dense in layer._flatten_layers(include_self=False):
        if hasattr(dense, "kernel"):
            dense.quantize("int8")
    assert layer.query_dense._kernel.dtype == layer.output_dense._kernel.dtype == "int8"
    assert np.mean(np.square(before - layer(x, x))) < 1e-3


def test_a_dtype_policy_map_reaches_the_projections():
    policies = keras.dtype_policies.DTypePolicyMap()
    policies["mha/query"] = keras.dtype_policies.QuantizedDTypePolicy("int8", "float32")
    layer = MultiHeadAttention(3, 8, use_bias=False, dtype=policies, name="mha")
    layer.build((1, 2, 2), (1, 2, 2))
    assert layer.query_dense._kernel.dtype == "int8"
    assert layer.key_dense._kernel.dtype == "float32"


def test_initializers_constraints_and_regularizers():
    layer = MultiHeadAttention(
        2,
        4,
        use_gate=True,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        kernel_constraint="non_neg",
        bias_constraint="non_neg",
        kernel_regularizer="l2",
        bias_regularizer="l1",
    )
    layer.build((2, 4, 8), (2, 4, 8))
    kernels = [w for w in layer.weights if w.name == "kernel"]
    assert len(kernels) == 5
    assert not np.allclose(kernels[0], kernels[1])
    assert all(isinstance(w.constraint, keras.constraints.NonNeg) for w in layer.weights)
    assert len(layer.losses) == 10


def test_a_subclass_with_keras_signature_of_compute_attention():
    seen = {}

    class Sub(MultiHeadAttention):
        def _compute_attention(
            self,
            query,
            key,
            value,
            attention_mask=None,
            training=None,
            return_attention_scores=False,
        ):
            seen["mask"] = attention_mask
            return super()._compute_attention(
                query, key, value, attention_mask, training, return_attention_scores
            )

    x = randoms((2, 5, 8))[0]
    sub, plain = Sub(2, 4), MultiHeadAttention(2, 4)
    expected = plain(x, x, use_causal_mask=True)
    sub.build(x.shape, x.shape)
    sub.set_weights(plain.get_weights())
    assert_close(sub(x, x, use_causal_mask=True), expected)
    assert seen["mask"] is not None


@pytest.mark.parametrize("scores", [True, False])
def test_compute_attention_joins_flag_and_array(scores):
    layer = MultiHeadAttention(2, 4)
    layer.build((1, 5, 8), (1, 5, 8))
    query, key, value = randoms(*[(1, 5, 2, 4)] * 3)
    extra = np.ones((1, 5, 5), bool)
    extra[:, 3, 1] = False
    both = layer._compute_attention(query, key, value, extra, None, scores, use_causal_mask=True)
    merged = layer._compute_attention(
        query, key, value, extra & np.tri(5, dtype=bool), None, scores
    )
    assert_close(both[0], merged[0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"value_dim": 3, "output_shape": (2, 5), "use_bias": False, "dropout": 0.2, "seed": 3},
        {"attention_axes": 2},
        {"num_key_value_heads": 1},
    ],
    ids=str,
)
def test_from_keras(options):
    shapes = [(2, 5, 8), (2, 7, 8)]
    if "attention_axes" in options:
        shapes = [(2, 3, 5, 8), (2, 3, 7, 8)]
    _, stock = pair(shapes, num_heads=4, **options)
    ours = from_keras(stock)
    assert type(ours) is MultiHeadAttention
    arrays = randoms(*shapes)
    assert_close(
        ours(*arrays, return_attention_scores=True), stock(*arrays, return_attention_scores=True)
    )
    config = ours.get_config()
    assert all(config[name] in (value, (value,)) for name, value in options.items())
    assert config["name"] == stock.name
    unbuilt = from_keras(type(stock).from_config(stock.get_config()))
    assert not unbuilt.built


def test_from_keras_merges_lora_and_refuses_what_it_cannot_take():
    _, stock = pair([(2, 5, 8), (2, 5, 8)], use_bias=False)
    stock.query_dense.enable_lora(2)
    lora = stock.query_dense.lora_kernel_b
    lora.assign(np.ones(lora.shape))
    x = randoms((2, 5, 8))[0]
    assert_close(from_keras(stock)(x, x), stock(x, x))
    stock.value_dense.quantize("int8")
    with pytest.raises(ValueError, match="`layer` must not be quantised"):
        from_keras(stock)
    with pytest.raises(TypeError, match="`layer` must be a keras"):
        from_keras(keras.layers.Dense(3))
