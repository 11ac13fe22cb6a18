"""Exported models run in LiteRT with its own operators, at any batch size and length, and agree with the original."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import heed
from heed import layers, ops
from heed.export import litert
from heed.export.errors import ExportError
from heed.export.programs import Program, programs_of
from heed.export.runners import _litert as runner
from heed.models import (
    LanguageModel,
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    RecurrentTranslator,
    RecurrentTranslatorConfig,
    SequenceClassifier,
    Transformer,
    TransformerConfig,
)
from tests import reference
from tests.ops.test_backends_exportable import DYNAMIC
from tests.slow import slow
from tests.strategies import Shape

pytest.importorskip("ai_edge_litert")

VOCABULARY = 40
# (B, T): longer and shorter, more and fewer than before, and one token.
SIZES = ((2, 5), (3, 9), (1, 1), (2, 5))
ATOL = 5e-6

Run = Callable[..., dict[str, np.ndarray]]


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Callable[..., dict[str, Run]]:
    """Write programs, check their operators, and load them."""

    def write(programs: list[Program], **options: Any) -> dict[str, Run]:
        litert.write(programs, tmp_path, **options)
        found = litert.operators(tmp_path / litert.FILE)
        assert found
        assert not [name for name in found if name.startswith("custom")]
        return runner.load(tmp_path)

    return write


def tokens_of(batch: int, length: int, seed: int = 0) -> np.ndarray:
    """Return tokens (B, T); the first row ends with padding."""
    tokens = np.random.default_rng(seed).integers(3, VOCABULARY, (batch, length)).astype("int32")
    tokens[0, (length + 1) // 2 :] = 0
    return tokens


def check_model(model: Any, run: Run, sizes: Any = SIZES, atol: float = ATOL) -> None:
    for batch, length in sizes:
        tokens = tokens_of(batch, length)
        expected = model({"tokens": tokens})
        (found,) = run(tokens=tokens).values()
        np.testing.assert_allclose(found, expected, atol=atol)


def over_tokens(make: Callable[[Any, Any], Any], width: int = 16) -> Any:
    """Return a model of tokens (B, T): `make` gets their embeddings, and a mask that is False at padding."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    vectors = keras.layers.Embedding(VOCABULARY, width, embeddings_initializer="normal")(tokens)
    outputs = make(vectors, keras.ops.not_equal(tokens, 0))
    return keras.Model({"tokens": tokens}, keras.layers.Dense(3)(outputs))


def with_multi_head(x: Any, real: Any) -> Any:
    attention = layers.MultiHeadAttention(4, 4)
    x = attention(x, x, query_mask=real, value_mask=real, use_causal_mask=True)
    return keras.layers.GlobalMaxPooling1D()(x)


def with_grouped_window(x: Any, real: Any) -> Any:
    attention = layers.MultiHeadAttention(4, 4, num_key_value_heads=2)
    return attention(x, x, value_mask=real, attention_mask=ops.Mask.window(2, 1))


def with_additive(x: Any, real: Any) -> Any:
    return layers.AdditiveAttention(8)(x, x, value_mask=real)


def with_bilstm(x: Any, real: Any) -> Any:
    x = keras.layers.Bidirectional(keras.layers.LSTM(6, return_sequences=True))(x, mask=real)
    last = keras.layers.GRU(12)(x, mask=real)
    return layers.AdditiveAttention(8)(last, x, value_mask=real)


def with_luong(x: Any, real: Any) -> Any:
    return layers.LuongAttention("general")(x, x, value_mask=real)


def with_keras_attention(x: Any, real: Any) -> Any:
    attention = keras.layers.MultiHeadAttention(2, 4)
    return attention(x, x, query_mask=real, value_mask=real, use_causal_mask=True)


@pytest.mark.parametrize(
    "make",
    [
        with_grouped_window,
        with_bilstm,
        *slow([with_additive, with_multi_head, with_luong, with_keras_attention]),
    ],
)
def test_keras_models(make: Any, write: Any) -> None:
    model = over_tokens(make)
    check_model(model, write(programs_of(model))["serve"])


def test_a_sequential_model(write: Any) -> None:
    """Keras has no input structure for it."""
    embedding = keras.layers.Embedding(VOCABULARY, 4)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), embedding, keras.layers.GRU(3)])
    programs = programs_of(model)
    run = write(programs)["serve"]
    (name,) = programs[0].inputs
    for batch, length in SIZES:
        tokens = tokens_of(batch, length)
        (found,) = run(**{name: tokens}).values()
        np.testing.assert_allclose(found, model(tokens), atol=ATOL)


@pytest.mark.slow  # the layers are those of other models here
def test_a_sequence_classifier(write: Any) -> None:
    config = MaskedLanguageModelConfig(VOCABULARY, width=16, num_heads=2, feed_forward_width=32)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    model = keras.Model({"tokens": tokens}, SequenceClassifier(config, 3)(tokens))
    check_model(model, write(programs_of(model))["serve"])


@pytest.fixture
def accelerated() -> Iterator[None]:
    with heed.accelerate():
        yield


@pytest.mark.slow  # in ONNX they are tested by default
@pytest.mark.parametrize("name", ["BertBackbone", "GPT2Backbone"])
def test_accelerated_models_of_keras_hub(name: str, write: Any, accelerated: None) -> None:
    hub = pytest.importorskip("keras_hub")
    model = getattr(hub.models, name)(
        vocabulary_size=VOCABULARY,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=32,
    )
    run = write(programs_of(model))["serve"]
    for batch, length in SIZES:
        tokens = tokens_of(batch, length)
        inputs = {"token_ids": tokens, "padding_mask": (tokens != 0).astype("int32")}
        if name == "BertBackbone":
            inputs["segment_ids"] = np.arange(length, dtype="int32")[None] % 2 + 0 * tokens
        expected = model(inputs)
        expected = expected if isinstance(expected, dict) else {"output_0": expected}
        found = run(**inputs)
        assert set(found) == set(expected)
        for key, wanted in expected.items():
            np.testing.assert_allclose(found[key], wanted, atol=ATOL)


@pytest.mark.parametrize("kinds", [list(DYNAMIC)[::2], *slow([list(DYNAMIC)])], ids=len)
def test_each_kind_of_mask(kinds: list[str], write: Any) -> None:
    """Each is a signature of one file; with bias, ALiBi and a soft cap."""
    slopes = [0.5, 0.25, 0.125, 0.0625]
    inputs = {
        "query": tf.TensorSpec((None, None, 4, 3), tf.float32, "query"),
        "key": tf.TensorSpec((None, None, 2, 3), tf.float32, "key"),
        "value": tf.TensorSpec((None, None, 2, 5), tf.float32, "value"),
        "lengths": tf.TensorSpec((None,), tf.int32, "lengths"),
        "rows": tf.TensorSpec((None, None), tf.int32, "rows"),
        "columns": tf.TensorSpec((None, None), tf.int32, "columns"),
    }

    def program(kind: str) -> Program:
        def serve(query: Any, key: Any, value: Any, lengths: Any, rows: Any, columns: Any) -> Any:
            mask = DYNAMIC[kind][0](lengths, (rows, columns))
            bias = tf.where(columns > 1, -1e30, 0.1 * tf.cast(columns, tf.float32))
            out, lse = ops.dot_product_attention(
                query,
                key,
                value,
                mask=mask,
                bias=bias[:, None, None],
                alibi_slopes=slopes,
                soft_cap=2.0,
                return_lse=True,
            )
            # Each input reaches an output: what no mask reads would be no input of the file.
            used = tf.cast(tf.reduce_sum(lengths) + tf.reduce_sum(rows), tf.float32)
            return {"out": out, "lse": lse, "used": used}

        return Program(kind.replace(" ", "_"), serve, inputs)

    runs = write([program(kind) for kind in kinds])
    rng = np.random.default_rng(0)
    for B, T, S in ((2, 5, 7), (1, 1, 1), (3, 6, 4)):
        query, key, value = Shape(B, T, S, 4, 2, 3, 5).inputs(1, "float32")
        lengths = rng.integers(0, S + 1, B).astype("int32")
        rows, columns = (rng.integers(0, 3, (B, length)).astype("int32") for length in (T, S))
        bias = np.where(columns > 1, -1e30, 0.1 * columns)[:, None, None]
        for kind in kinds:
            meaning = DYNAMIC[kind][1]
            dense = meaning(B, T, S, lengths, (rows, columns))[:, :1]
            expected = reference.dot_product_attention(
                *(x.astype(float) for x in (query, key, value)),
                mask=np.broadcast_to(dense, (B, 4, T, S)),
                bias=bias,
                alibi_slopes=slopes,
                align={"bottom_right": S - T, "dilated": S - T, "align": lengths}.get(kind, 0),
                soft_cap=2.0,
            )
            found = runs[kind.replace(" ", "_")](
                query=query, key=key, value=value, lengths=lengths, rows=rows, columns=columns
            )
            np.testing.assert_allclose(found["out"], expected.out, atol=ATOL, err_msg=kind)
            np.testing.assert_allclose(found["lse"], expected.lse, atol=ATOL, err_msg=kind)


def make_transformer(width: int = 16, **options: Any) -> Transformer:
    config = TransformerConfig(
        VOCABULARY,
        VOCABULARY,
        width=width,
        num_heads=4,
        feed_forward_width=2 * width,
        encoder_layers=1,
        decoder_layers=1,
        **options,
    )
    return Transformer(config)


def make_recurrent(attention: str) -> RecurrentTranslator:
    config = RecurrentTranslatorConfig(VOCABULARY, VOCABULARY, width=16, attention=attention)
    return RecurrentTranslator(config)


def make_language_model() -> LanguageModel:
    config = LanguageModelConfig(VOCABULARY, width=16, num_heads=2, layers=1, sliding_window=3)
    return LanguageModel(config)


def check_steps(
    model: Any, programs: list[Program], runs: dict[str, Run], atol: float = ATOL
) -> None:
    """Compare the scores of each step with those of the model that reads all tokens at once."""
    step = programs[-1]
    for batch, length in SIZES:
        tokens, known = tokens_of(batch, length, seed=1), {}
        if "encode" in runs:
            source = tokens_of(batch, length + 2)
            known = runs["encode"](source=source)
            expected = model.decode_all(tokens, model.encode_source(source))
        else:
            expected = model.decode_all(tokens)
        for name in step.growing:
            spec = step.inputs[name]
            known[name] = np.zeros((batch, 0, *spec.shape[2:]), spec.dtype.as_numpy_dtype)
        for index in range(length):
            found = runs["decode_step"](tokens=tokens[:, index : index + 1], index=index, **known)
            np.testing.assert_allclose(found.pop("logits"), expected[:, index], atol=atol)
            assert all(found[name].shape[1] == index + 1 for name in step.growing)
            known |= found


@pytest.mark.parametrize(
    "make",
    [
        # A transformer's two programs are those of the same model in ONNX.
        *slow([lambda: make_transformer(num_key_value_heads=2, position="rotary")]),
        make_language_model,
        # Its layers are those of `with_bilstm`; it decodes as a SavedModel and in ONNX.
        pytest.param(lambda: make_recurrent("additive"), marks=pytest.mark.slow),
    ],
    ids=["transformer", "language model", "recurrent"],
)
def test_decoding(make: Any, write: Any) -> None:
    model = make()
    programs = programs_of(model)
    check_steps(model, programs, write(programs))


@pytest.mark.slow
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "alibi", "relative"])
def test_other_positions(position: str, write: Any) -> None:
    model = make_transformer(position=position, soft_cap=5.0, gated=True, sinks=True)
    programs = programs_of(model)
    check_steps(model, programs, write(programs))


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["location", "dot", "general", "scaled", "none"])
def test_other_recurrent_translators(attention: str, write: Any) -> None:
    model = make_recurrent(attention)
    programs = programs_of(model)
    check_steps(model, programs, write(programs))


@pytest.mark.slow
def test_programs_share_their_weights(write: Any, tmp_path: pathlib.Path) -> None:
    """A table shared by source and target is stored once."""
    model = make_transformer(width=256, share_embeddings=True)
    write(programs_of(model))
    size = (tmp_path / litert.FILE).stat().st_size
    weights = 4 * model.count_params()
    assert weights < size < weights + 150_000
    assert 4 * VOCABULARY * 256 > 40_000  # the table is more than what else varies


def sharp_model() -> Any:
    """Return a model with peaked attention, which differs from a plain mean."""
    model = over_tokens(
        lambda x, real: layers.MultiHeadAttention(4, 16)(
            x, x, query_mask=real, value_mask=real, use_causal_mask=True
        ),
        width=64,
    )
    for weight in model.weights:
        if "embeddings" in weight.path:
            weight.assign(weight * 20)
        elif "query" in weight.path or "key" in weight.path:
            weight.assign(weight * 3)
    return model


def error(model: Any, run: Run) -> float:
    """Return the mean difference divided by the mean output, over some sizes."""
    pairs = []
    for seed, (batch, length) in enumerate(((4, 9), (3, 20), (2, 3))):
        tokens = tokens_of(batch, length, seed)
        pairs.append((run(tokens=tokens)["output_0"], np.asarray(model({"tokens": tokens}))))
    return float(
        np.mean([np.abs(found - expected).mean() for found, expected in pairs])
        / np.mean([np.abs(expected).mean() for _, expected in pairs])
    )


def test_precisions(write: Any, tmp_path: pathlib.Path) -> None:
    """Files get smaller, and attention stays the same."""
    model = sharp_model()
    programs = programs_of(model)
    samples = [{"tokens": tokens_of(4, length, length)} for length in (1, 2, 3, 9, 15, 20)]
    found, sizes = {}, {}
    for name, options in {
        "float32": {},
        "float16": {"precision": "float16"},
        "int8": {"precision": "int8"},
        "samples": {"precision": "int8", "calibration": samples},
    }.items():
        run = write(programs, **options)["serve"]
        found[name], sizes[name] = error(model, run), (tmp_path / litert.FILE).stat().st_size
        if name in ("int8", "samples"):
            # With samples, rows are rounded by operations of the file.
            names = litert.operators(tmp_path / litert.FILE)
            assert ("QUANTIZE" in names) == (name == "samples")
    assert found["float32"] < 1e-5 < found["float16"] < 1e-2
    assert 1e-3 < found["int8"] < 0.06
    assert 1e-3 < found["samples"] < 0.1
    weights = 4 * model.count_params()
    assert sizes["float16"] < sizes["float32"] - 0.45 * weights
    assert sizes["int8"] < sizes["float32"] - 0.65 * weights
    assert sizes["samples"] < sizes["float32"] - 0.5 * weights


class Svd(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return tf.linalg.svd(x, compute_uv=False)


def half_precision() -> Any:
    x = keras.Input((None, 4), name="x")
    attention = layers.MultiHeadAttention(2, 4, dtype="mixed_float16", name="attention")
    return keras.Model(x, attention(x, x))


def of_vectors(layer: Any) -> Any:
    x = keras.Input((None, 4), name="x")
    return keras.Model(x, layer(x))


def of_looked_up() -> Any:
    x = keras.Input((None,), dtype="int64", name="x")
    ids = keras.layers.IntegerLookup(vocabulary=[5, 7, 9])(x)
    return keras.Model(x, keras.layers.Embedding(5, 2)(ids))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: of_vectors(Svd(name="my_svd")),
            r"LiteRT has no operator for Svd in \S*my_svd\S*\. Nearest: write that with other operations; .*",
        ),
        (
            lambda: of_vectors(keras.layers.TimeDistributed(keras.layers.Dense(2), name="each")),
            r"LiteRT has no operator for TensorList\w* in \S*each\S*( \(and \d more\))?\. Nearest: LSTM, GRU, .*",
        ),
        (
            half_precision,
            r"LiteRT computes in float32, not in float16 as \w+ in \S*attention\S* \(and \d more\)\. "
            r"Nearest: the model with dtype=\"float32\" .* precision=\"float16\"",
        ),
        (
            lambda: of_vectors(keras.layers.LSTM(2, dtype="float64", name="cells")),
            r"LiteRT computes in float32, not in float64 as \w+ in \S*cells\S* \(and \d more\)\. .*",
        ),
        (
            of_looked_up,
            r"LiteRT supports tensors only, no \w*Table\. Nearest: the model without its lookup .*",
        ),
    ],
    ids=["no operator", "a loop over lists", "half precision", "in a loop", "a table"],
)
def test_unsupported_operations_are_one_line(
    make: Any, message: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    programs = programs_of(make())
    capfd.readouterr()
    with pytest.raises(ExportError) as caught:
        litert.write(programs, tmp_path)
    assert re.fullmatch(message, str(caught.value)), str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int4"}, "`precision` of litert must be one of float32, float16, int8"),
        ({"calibration": [{"x": np.ones((1, 2, 4))}]}, '`calibration` goes with precision="int8"'),
        (
            {"precision": "int8", "calibration": []},
            "`calibration` must be a list of one sample at least",
        ),
        (
            {"precision": "int8", "calibration": [{"y": np.ones((1, 2, 4))}]},
            "`calibration` must have an array for each input: x. Received: y",
        ),
        (
            {"precision": "int8", "calibration": [{"x": np.ones((1, 2, 5))}]},
            r"`x` of `calibration` must have the shape \(None, None, 4\), .* Received: \(1, 2, 5\)",
        ),
    ],
)
def test_bad_options(options: Any, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ExportError, match=message):
        litert.write(programs_of(of_vectors(keras.layers.Dense(2))), tmp_path, **options)


def test_samples_are_for_one_program(tmp_path: pathlib.Path) -> None:
    programs = [Program(name, lambda x: {"y": x}, {}) for name in ("encode", "decode_step")]
    with pytest.raises(ExportError, match=r"one program.*programs encode, decode_st"):
        litert.write(programs, tmp_path, precision="int8", calibration=[{}])


def test_too_many_weights_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Dense layer of 4 by 2 numbers and 2 more: 40 bytes, or 20."""
    programs = programs_of(of_vectors(keras.layers.Dense(2)))
    monkeypatch.setattr(litert, "_MOST_BYTES", 40)
    with pytest.raises(ExportError, match=r"less than 40 bytes.*of 40 bytes"):
        litert.write(programs, tmp_path)
    litert.write(programs, tmp_path, precision="float16")


def test_nothing_is_printed(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    programs = programs_of(of_vectors(keras.layers.LSTM(2)))
    capfd.readouterr()
    litert.write(programs, tmp_path)
    assert capfd.readouterr() == ("", "")


def test_operators_of_tensorflow_are_listed(tmp_path: pathlib.Path) -> None:
    """Those of loops too."""
    body = lambda x: (tf.linalg.inv(x) + 9.0,)  # noqa: E731
    loop = tf.function(lambda x: tf.while_loop(lambda x: x[0, 0] < 9, body, (x,)), autograph=False)
    graph = loop.get_concrete_function(tf.TensorSpec((2, 2)))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([graph], loop)
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    content = converter.convert()
    path = tmp_path / "flex.tflite"
    path.write_bytes(content)
    assert "custom FlexMatrixInverse" in litert.operators(content)
    assert {"custom FlexMatrixInverse", "WHILE"} <= set(litert.operators(path))


def test_the_runner_names_missing_inputs(write: Any) -> None:
    run = write(programs_of(of_vectors(keras.layers.Dense(2))))["serve"]
    with pytest.raises(ValueError, match=r"serve needs x\. Missing: x"):
        run(y=np.ones((1, 2, 4)))
