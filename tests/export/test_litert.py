"""Exported models run in LiteRT with its own operators, at any batch size and length, and agree with the original."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from heed import layers, ops
from heed.export import litert
from heed.export.errors import ExportError
from heed.export.programs import Program, programs_of
from heed.export.runners import _litert as runner
from tests import reference
from tests.export.classifiers import CLASSIFIERS, WORDS, classifier
from tests.export.decoding import DECODABLE, check_decoding, transformer
from tests.ops.test_backends_exportable import DYNAMIC
from tests.slow import slow
from tests.strategies import Shape

pytest.importorskip("ai_edge_litert")

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
    tokens = np.random.default_rng(seed).integers(3, WORDS, (batch, length)).astype("int32")
    tokens[0, (length + 1) // 2 :] = 0
    return tokens


def check_model(model: Any, write: Any) -> Run:
    programs = programs_of(model)
    (name,), run = programs[0].inputs, write(programs)["serve"]
    for batch, length in SIZES:
        tokens = tokens_of(batch, length)
        (found,) = run(**{name: tokens}).values()
        np.testing.assert_allclose(found, model(tokens), atol=ATOL)
    return run


# A language model, below, has multi-head attention.
@pytest.mark.parametrize("name", ["BiLSTM", *slow(sorted(CLASSIFIERS.keys() - {"BiLSTM"}))])
def test_keras_models(name: str, write: Any) -> None:
    attend, _ = CLASSIFIERS[name]
    check_model(classifier(attend), write)


def test_a_sequential_model(write: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Keras has no input structure for it. Nothing is printed, and the runner names a missing input."""
    embedding = keras.layers.Embedding(WORDS, 4)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Sequential([ids, embedding, keras.layers.GRU(3)])
    capfd.readouterr()
    run = check_model(model, write)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ValueError, match=r"serve needs \w+\. Missing: \w+"):
        run(y=np.ones((1, 2, 4)))


@pytest.mark.parametrize("kinds", [list(DYNAMIC)[::4], *slow([list(DYNAMIC)])], ids=len)
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
            mask = DYNAMIC[kind](lengths, (rows, columns))
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
            mask = DYNAMIC[kind](lengths, (rows, columns))
            expected = reference.dot_product_attention(
                *(x.astype(float) for x in (query, key, value)),
                mask=np.broadcast_to(mask.to_dense(T, S), (B, 4, T, S)),
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


# The others decode in ONNX too.
@pytest.mark.parametrize("name", ["language model", *slow([*DECODABLE][1:])])
def test_decoding(name: str, write: Any) -> None:
    check_decoding(name, write, atol=ATOL)


@pytest.mark.slow
def test_programs_share_their_weights(write: Any, tmp_path: pathlib.Path) -> None:
    """A table shared by source and target is stored once."""
    model = transformer(width=256, share_embeddings=True)
    write(programs_of(model))
    size = (tmp_path / litert.FILE).stat().st_size
    weights = 4 * model.count_params()
    assert weights < size < weights + 150_000
    assert 4 * WORDS * 256 > 40_000  # the table is more than what else varies


def sharp_model() -> Any:
    """Return a model with peaked attention, which differs from a plain mean."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Embedding(WORDS, 64, embeddings_initializer="normal")(tokens)
    real = keras.ops.not_equal(tokens, 0)
    attention = layers.MultiHeadAttention(4, 16)
    x = attention(x, x, query_mask=real, value_mask=real, use_causal_mask=True)
    model = keras.Model(tokens, keras.layers.Dense(3)(x))
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
        pairs.append((run(tokens=tokens)["output_0"], np.asarray(model(tokens))))
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
        ({"precision": "float16", "calibration": [{}]}, '`calibration` goes with precision="int8"'),
        ({"calibration": []}, "`calibration` must be a list of one sample at least"),
        ({"calibration": [{"y": 1}]}, "`calibration` must have an array for each input: x. "),
        (
            {"calibration": [{"x": np.ones((1, 2, 5))}]},
            r"`x` of `calibration` must have the shape \(None, None, 4\), .* Received: \(1, 2, 5\)",
        ),
    ],
)
def test_bad_options(options: Any, message: str, tmp_path: pathlib.Path) -> None:
    programs = programs_of(of_vectors(keras.layers.Dense(2)))
    with pytest.raises(ExportError, match=message):
        litert.write(programs, tmp_path, **{"precision": "int8", **options})


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
