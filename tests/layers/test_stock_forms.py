"""`replace_attention(model, by="keras")` of models with heed's composite layers, and of heed's models.

What it gives agrees where there are tokens. At padding Keras' attention takes a mean where heed's gives 0.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed import layers
from heed.layers import (
    FeedForward,
    LearnedPositions,
    SinusoidalPositions,
    TokenEmbedding,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    replace_attention,
)
from heed.models import (
    LanguageModel,
    LanguageModelConfig,
    MaskedLanguageModel,
    MaskedLanguageModelConfig,
    Transformer,
    TransformerConfig,
    TransformerEncoder,
)
from tests.layers.stock import HAS_WINDOW, randomise, randoms
from tests.slow import slow

SOURCE = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
TARGET = np.array([[1, 2, 3, 4], [5, 6, 0, 0]])
ATOL = 1e-5


def translator(**options: Any) -> keras.Model:
    """Build encoder and decoder layers behind embeddings that mask padding."""
    keras.utils.set_random_seed(0)
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    x = SinusoidalPositions(name="waves")(TokenEmbedding(11, 8, name="words")(source))
    y = TokenEmbedding(13, 8, scale=False, name="others")(target)
    y = LearnedPositions(20, name="places")(y)
    for i in range(2):
        x = TransformerEncoderLayer(2, 16, name=f"encoder_{i}", dropout=0.1, **options)(x)
    for i in range(2):
        y = TransformerDecoderLayer(2, 16, name=f"decoder_{i}", **options)(y, x)
    model = keras.Model([source, target], keras.layers.Dense(13)(y), name="translator")
    randomise(model)
    return model


def assert_loads_without_heed(model: keras.Model, inputs: Any, folder: Path) -> None:
    """Check that a stock model's file opens where heed cannot be imported, and computes the same."""
    path = folder / "stock.keras"
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        assert "heed" not in archive.read("config.json").decode()
    arrays = inputs if isinstance(inputs, dict) else dict(enumerate(keras.tree.flatten(inputs)))
    np.savez(folder / "in.npz", **{str(name): array for name, array in arrays.items()})
    given = "dict(d)" if isinstance(inputs, dict) else "[d[name] for name in d.files]"
    code = (
        "import sys; sys.modules['heed'] = None\n"
        "import keras, numpy as np\n"
        "d = np.load('in.npz')\n"
        f"np.save('out.npy', keras.saving.load_model('stock.keras').predict({given}, verbose=0))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    expected = np.asarray(model(inputs))
    np.testing.assert_allclose(np.load(folder / "out.npy"), expected, atol=ATOL)


def assert_stock(model: keras.Model) -> None:
    assert not [layer.name for layer in model.layers if type(layer).__module__.startswith("heed")]


OPTIONS: list[dict[str, Any]] = [
    {"norm_first": False, "use_bias": False, "sliding_window": 2},
    *slow(
        [
            {"parallel": True},
            {
                "gated": True,
                "activation": "silu",
                "normalization": "rms",
                "key_dim": 6,
                "value_dim": 3,
            },
            {"num_key_value_heads": 1, "norm_epsilon": 0.1},
        ]
    ),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_encoder_and_decoder_layers_with_padding(options: dict[str, Any]) -> None:
    if "sliding_window" in options and not HAS_WINDOW:
        pytest.skip("this version of Keras has no sliding window")
    model = translator(**options)
    stock = replace_attention(model, by="keras")
    assert_stock(stock)
    expected, found = np.asarray(model([SOURCE, TARGET])), np.asarray(stock([SOURCE, TARGET]))
    np.testing.assert_allclose(found[TARGET != 0], expected[TARGET != 0], atol=ATOL)
    assert np.abs(expected).max() > 0.1
    # Weights are copies.
    assert stock.count_params() == model.count_params()
    stock.set_weights([0 * weight for weight in stock.get_weights()])
    np.testing.assert_array_equal(np.asarray(model([SOURCE, TARGET])), expected)


@pytest.mark.slow  # `test_replacing.py` looks for heed in a file, and loads it here
def test_its_file_loads_without_heed(tmp_path: Path) -> None:
    stock = replace_attention(translator(norm_first=False), by="keras")
    assert_loads_without_heed(stock, [SOURCE, TARGET], tmp_path)


def masked_by_arguments(causal: bool, per_head: bool) -> keras.Model:
    x, seen = keras.Input((None, 8)), keras.Input((None,), dtype="bool")
    pairs = keras.Input((2, None, None) if per_head else (None, None), dtype="bool")
    layer = TransformerEncoderLayer(2, 16, name="layer")
    y, scores = layer(
        x, mask=seen, attention_mask=pairs, use_causal_mask=causal, return_attention_scores=True
    )
    decoder = TransformerDecoderLayer(2, 16, name="decoder", use_bias=False)
    z = decoder(y, x, inputs_mask=seen, encoded_mask=seen, use_causal_mask=not causal)
    return keras.Model([x, seen, pairs], [z, scores])


@pytest.mark.parametrize(
    ("causal", "per_head"), [(False, True), (True, False), *slow([(False, False), (True, True)])]
)
def test_masks_that_are_arguments(causal: bool, per_head: bool) -> None:
    model = masked_by_arguments(causal, per_head)
    randomise(model)
    stock = replace_attention(model, by="keras")
    rng = np.random.default_rng(0)
    pairs = rng.random((2, 2, 5, 5) if per_head else (2, 5, 5)) < 0.6
    pairs |= np.eye(5, dtype=bool)  # each query sees one key
    seen = np.array([[True] * 5, [True, True, True, False, False]])
    given = [*randoms((2, 5, 8)), seen, pairs]
    for found, expected in zip(stock(given), model(given), strict=True):
        found, expected = np.asarray(found), np.asarray(expected)
        if expected.ndim == 4:  # the scores (B, N, T, S)
            found, expected = (np.moveaxis(one, 1, 2) for one in (found, expected))
        np.testing.assert_allclose(found[seen], expected[seen], atol=ATOL)


def test_a_layer_that_is_called_twice_stays_one() -> None:
    x = keras.Input((None, 8))
    layer, plain = TransformerEncoderLayer(2, 16, name="layer"), keras.layers.Dense(8)
    model = keras.Model(x, layer(plain(layer(plain(x)))))
    randomise(model)
    stock = replace_attention(model, by="keras")
    assert stock.count_params() == model.count_params()
    array = randoms((2, 5, 8))[0]
    np.testing.assert_allclose(stock(array), model(array), atol=ATOL)


def test_models_within_models_and_sequential_ones() -> None:
    x = keras.Input((None, 8))
    inner = keras.Model(x, TransformerEncoderLayer(2, 16, name="layer")(x), name="inner")
    parts = [keras.Input((None, 8)), inner, FeedForward(12, gated=True), SinusoidalPositions()]
    model = keras.Sequential([*parts, keras.layers.Dense(3)])
    randomise(model)
    stock = replace_attention(model, by="keras")
    assert_stock(stock)
    assert_stock(stock.get_layer("inner"))
    array = randoms((2, 5, 8))[0]
    np.testing.assert_allclose(stock(array), model(array), atol=ATOL)


def test_a_mask_goes_on_through_a_nested_model() -> None:
    x = keras.Input((None, 8))
    inner = keras.Model(x, TransformerEncoderLayer(2, 16)(x))
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, inner(TokenEmbedding(11, 8)(ids)))
    randomise(model)
    stock = replace_attention(model, by="keras")
    expected, found = np.asarray(model(SOURCE)), np.asarray(stock(SOURCE))
    np.testing.assert_allclose(found[SOURCE != 0], expected[SOURCE != 0], atol=ATOL)


def test_positions_that_start_later() -> None:
    x = keras.Input((None, 8))
    y = SinusoidalPositions(max_wavelength=50)(
        LearnedPositions(30)(x, start_index=4), start_index=7
    )
    model = keras.Model(x, TransformerEncoderLayer(2, 16)(y))
    randomise(model)
    array = randoms((2, 20, 8))[0]
    stock = replace_attention(model, by="keras")
    np.testing.assert_allclose(stock(array), model(array), atol=ATOL)


def test_float16_policy_is_kept() -> None:
    x = keras.Input((None, 8))
    y = SinusoidalPositions(dtype="mixed_float16")(x)
    model = keras.Model(x, TransformerEncoderLayer(2, 16, dtype="mixed_float16", name="layer")(y))
    stock = replace_attention(model, by="keras")
    assert stock.get_layer("layer_attention").compute_dtype == "float16"
    array = randoms((2, 300, 8))[0]
    np.testing.assert_allclose(stock(array), model(array), atol=2e-2)


def config(**changes: Any) -> dict[str, Any]:
    sizes = {"width": 8, "num_heads": 2, "feed_forward_width": 16, "max_length": 20, "dropout": 0.1}
    return {**sizes, **changes}


@pytest.mark.parametrize(
    "options",
    [
        {"tie_embeddings": False, "position": "learned", "logit_soft_cap": 0.7},
        *slow(
            [
                {},
                {"norm_first": False, "gated": True, "normalize_embeddings": True},
                {
                    "scale_embeddings": False,
                    "norm_epsilon": 0.1,
                    "normalization": "rms",
                    "num_key_value_heads": 1,
                },
            ]
        ),
    ],
    ids=str,
)
def test_a_transformer(options: dict[str, Any]) -> None:
    model = Transformer(TransformerConfig(11, 13, **config(**options)))
    model.build()
    randomise(model)
    stock = replace_attention(model, by="keras")
    assert_stock(stock)
    inputs = {"source": SOURCE, "target": TARGET}
    np.testing.assert_allclose(stock(inputs), model(inputs), atol=ATOL)


def test_a_language_model() -> None:
    options = config(position="sinusoidal", parallel=True)
    language = LanguageModel(LanguageModelConfig(13, **options))
    stock = replace_attention(language, by="keras")
    assert_stock(stock)
    np.testing.assert_allclose(stock(TARGET), language(TARGET), atol=ATOL)


@pytest.mark.slow
def test_files_of_a_transformer_and_a_language_model(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    model = Transformer(TransformerConfig(11, 11, **config(share_embeddings=True)))
    stock = replace_attention(model, by="keras")
    inputs = {"source": SOURCE, "target": TARGET}
    np.testing.assert_allclose(stock(inputs), model(inputs), atol=ATOL)
    assert_loads_without_heed(stock, inputs, tmp_path / "one")
    language = LanguageModel(LanguageModelConfig(13, **config(position="sinusoidal")))
    stock = replace_attention(language, by="keras")
    np.testing.assert_allclose(stock(TARGET), language(TARGET), atol=ATOL)
    assert_loads_without_heed(stock, TARGET, tmp_path / "two")


def test_an_encoder_within_a_model() -> None:
    ids = keras.Input((None,), dtype="int32")
    encoder = TransformerEncoder(TransformerConfig(11, 11, **config()), name="reader")
    model = keras.Model(ids, keras.layers.Dense(3)(encoder(ids)))
    randomise(model)
    stock = replace_attention(model, by="keras")
    assert_stock(stock)
    assert stock.get_layer("reader_layer_0_attention").num_heads == 2
    np.testing.assert_allclose(stock(SOURCE), model(SOURCE), atol=ATOL)


def test_single_layers_that_keras_has_are_replaced_in_place() -> None:
    x = keras.Input((None, 8))
    y = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    y = heed.layers.normalization.LayerNormalization(name="norm")(x + y)
    y = heed.layers.dropout.Dropout(0.1, name="drop")(y)
    y = heed.layers.flat_dense.FlatDense(3, name="dense")(y)
    model = keras.Model(x, heed.layers.normalization.RMSNormalization(name="rms")(y))
    randomise(model)
    model.compile("adam", "mse")
    arrays = randoms((2, 5, 8), (2, 5, 3))
    model.train_on_batch(*arrays)
    stock = replace_attention(model, by="keras")
    assert_stock(stock)
    assert int(stock.optimizer.iterations) == 1
    np.testing.assert_allclose(stock(arrays[0]), model(arrays[0]), atol=ATOL)


@pytest.mark.slow
def test_compiled_models_stay_so_and_frozen_layers_too() -> None:
    model = translator()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for name in ("encoder_0", "places", "words"):
        model.get_layer(name).trainable = False
    stock = replace_attention(model, by="keras")
    assert len(stock.trainable_weights) == len(model.trainable_weights)
    before = stock.get_weights()
    stock.fit([SOURCE, TARGET], np.maximum(TARGET - 1, 0), verbose=0)
    changed = [np.abs(a - b).max() > 0 for a, b in zip(before, stock.get_weights(), strict=True)]
    assert sum(changed) > 10
    sequential = keras.Sequential([keras.Input((None, 8)), TransformerEncoderLayer(2, 16)])
    sequential.compile("sgd", "mse")
    assert replace_attention(sequential, by="keras").compiled


def refused(build: Any) -> str:
    x = keras.Input((None, 8))
    with pytest.raises(ValueError, match="options that Keras' layers lack") as error:
        replace_attention(keras.Model(x, build(x)), by="keras")
    return str(error.value).split("Received: ")[1]


def test_each_layer_that_cannot_be_is_named_with_its_reason() -> None:
    def build(x: Any) -> Any:
        x = TransformerEncoderLayer(2, 16, soft_cap=3.0, sinks=True, name="capped")(x)
        x = TransformerEncoderLayer(2, 16, qk_norm=True, name="normed")(x)
        x = TransformerEncoderLayer(2, 16, name="fine")(x)
        slopes = heed.ops.alibi_slopes(2)
        x = TransformerEncoderLayer(2, 16, name="sloped")(x, alibi_slopes=slopes)
        mask = heed.Mask.causal()
        x = TransformerEncoderLayer(2, 16, name="masked")(x, attention_mask=mask)
        x = layers.MultiHeadAttention(2, 4, name="turned", position="rotary")(x, x)
        return layers.LuongAttention(name="luong")(x, x)

    assert refused(build) == (
        "layer 'capped' with soft_cap, sinks; layer 'normed' with qk_norm; "
        "layer 'sloped' with alibi_slopes in its call; "
        "layer 'masked' with attention_mask, a heed.Mask instead of a tensor; "
        "layer 'turned' with position; layer 'luong' with no form in Keras' layers: LuongAttention"
    )


def test_masks_that_would_be_lost_are_refused() -> None:
    x = keras.Input((None, 8))
    inner = keras.Model(x, TransformerEncoderLayer(2, 16)(SinusoidalPositions(name="waves")(x)))
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, inner(TokenEmbedding(11, 8)(ids)))
    with pytest.raises(ValueError, match="stock forms lose the Keras mask"):
        replace_attention(model, by="keras")
    inner = keras.Model(ids, SinusoidalPositions(name="waves")(TokenEmbedding(11, 8)(ids)))
    again = keras.Input((None,), dtype="int32")
    model = keras.Model(again, TransformerEncoderLayer(2, 16)(inner(again)))
    with pytest.raises(ValueError, match="layer 'waves' with a Keras mask"):
        replace_attention(model, by="keras")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Transformer(TransformerConfig(11, 11, **config(sinks=True))), "sinks"),
        *slow([(LanguageModel(LanguageModelConfig(11, **config())), "position='rotary'")]),
        (
            MaskedLanguageModel(MaskedLanguageModelConfig(11, **config())),
            "no form in Keras' layers: MaskedLanguageModel",
        ),
    ],
)
def test_models_that_cannot_be_say_why(model: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"layer '{model.name}' with {reason}$"):
        replace_attention(model, by="keras")
