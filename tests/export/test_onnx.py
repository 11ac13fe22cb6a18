"""ONNX files give the same as the models, at other batch sizes and lengths than in tracing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import heed
from heed import layers, models
from heed.ops import Mask, dot_product_attention

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from heed.export.errors import ExportError  # noqa: E402
from heed.export.onnx import write  # noqa: E402
from heed.export.onnx._graph import names_read  # noqa: E402
from heed.export.programs import Program, programs_of  # noqa: E402
from heed.export.runners import _onnx as runner  # noqa: E402
from tests.export.classifiers import CLASSIFIERS, WIDTH, WORDS, classifier, with_weights  # noqa: E402
from tests.export.decoding import DECODABLE, check_decoding  # noqa: E402
from tests.slow import slow  # noqa: E402

L = keras.layers
SIZES = ((2, 5), (3, 7), (1, 1))
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}


def write_and_load(model: Any, folder: Path, **options: Any) -> dict[str, Callable[..., Any]]:
    write(programs_of(model), folder, **options)
    return runner.load(folder, threads=1)


def nodes_of(path: Path) -> Counter[str]:
    """Return the kinds of nodes; check that no node is redundant or unused."""
    graph = onnx.load(path).graph
    read = {x.name for x in graph.output}.union(*map(names_read, graph.node))
    for node in graph.node:
        assert read.intersection(node.output), node.name
    shapes = [str((node.input, node.attribute)) for node in graph.node if node.op_type == "Shape"]
    assert len(set(shapes)) == len(shapes)
    return Counter(node.op_type for node in graph.node)


def draw_inputs(model: keras.Model, batch: int, length: int) -> dict[str, np.ndarray]:
    """Return random inputs of a model: ids with padding at the end, floats, or masks of 0 and 1."""
    rng = np.random.default_rng(batch * 100 + length)
    found = {}
    for spec in programs_of(model)[0].inputs.values():
        shape = [
            n if n is not None else batch if i == 0 else length for i, n in enumerate(spec.shape)
        ]
        if spec.dtype.is_floating:
            found[spec.name] = rng.normal(size=shape).astype("float32")
        elif "mask" in spec.name:
            found[spec.name] = np.ones(shape, spec.dtype.as_numpy_dtype)
            found[spec.name][0, length // 2 + 1 :] = 0
        else:
            top = 2 if "segment" in spec.name else WORDS
            found[spec.name] = rng.integers(0, top, shape).astype(spec.dtype.as_numpy_dtype)
            if length > 2 and len(shape) > 1:
                found[spec.name][0, -2:] = 0
    return found


def check_agreement(
    model: keras.Model, folder: Path, sizes: Sequence[tuple[int, int]] = SIZES, **options: Any
) -> Counter[str]:
    """Compare the file with the model; return the kinds of its nodes."""
    serve = write_and_load(model, folder, **options)["serve"]
    for batch, length in sizes:
        inputs = draw_inputs(model, batch, length)
        found = serve(**inputs)
        with heed.set_implementation("portable"):
            expected = programs_of(model)[0].function(
                **{k: tf.constant(x) for k, x in inputs.items()}
            )
        assert set(found) == set(expected)
        for name, x in expected.items():
            assert found[name].shape == x.shape
            np.testing.assert_allclose(found[name], x.numpy(), **TOLERANCE)
    return nodes_of(folder / "model.onnx")


# The models of KerasHub have two layers, the language model has a causal mask.
@pytest.mark.parametrize("opset", [*slow([17]), 23])
@pytest.mark.parametrize(
    "name",
    [*sorted(CLASSIFIERS.keys() - {"two layers", "causal"}), *slow(["two layers", "causal"])],
)
def test_classifier(name: str, opset: int, tmp_path: Path) -> None:
    attend, count = CLASSIFIERS[name]
    nodes = check_agreement(classifier(attend), tmp_path, opset=opset)
    assert nodes["Attention"] == (count if opset >= 23 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 20, 22, 24])
def test_other_opsets(opset: int, tmp_path: Path) -> None:
    check_agreement(
        classifier(lambda x: L.GRU(WIDTH)(layers.MultiHeadAttention(2, 8)(x, x)), False),
        tmp_path,
        opset=opset,
    )
    assert onnx.load(tmp_path / "model.onnx").opset_import[0].version == opset


@pytest.mark.parametrize("opset", [*slow([17]), 23])
def test_vision_transformer(opset: int, tmp_path: Path) -> None:
    sizes = {"width": 8, "num_heads": 2, "feed_forward_width": 16}
    config = models.VisionTransformerConfig(image_size=8, patch_size=4, num_classes=3, **sizes)
    inner = models.VisionTransformer(config)
    inner.build()
    images = keras.Input((8, 8, 3), name="images")
    model = with_weights(keras.Model(images, inner(images)))
    assert check_agreement(model, tmp_path, opset=opset)["Attention"] == (2 if opset >= 23 else 0)


@pytest.mark.parametrize(
    ("name", "opset"),
    [
        ("BertBackbone", 23),
        *slow([("BertBackbone", 17), ("GPT2Backbone", 17), ("GPT2Backbone", 23)]),
    ],
)
def test_keras_hub(name: str, opset: int, tmp_path: Path) -> None:
    hub = pytest.importorskip("keras_hub", exc_type=ImportError)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": WIDTH, "intermediate_dim": 32}
    backbone = getattr(hub.models, name)
    model = backbone(vocabulary_size=WORDS, max_sequence_length=12, dropout=0.0, **sizes)
    with heed.accelerate():
        nodes = check_agreement(with_weights(model), tmp_path, opset=opset)
    assert nodes["Attention"] == (2 if opset >= 23 else 0)


# Models that decode.


def count_joins(path: Path) -> int:
    """Return the number of attentions that join past and new keys and values."""
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "Attention"]
    found = [node for node in nodes if len(node.input) == 6]
    assert all(len(node.output) == 3 for node in found)
    return len(found)


OPSETS = [(name, opset) for name in DECODABLE for opset in (17, 23)]
BY_DEFAULT = [("transformer", 23), ("gru", 23)]


@pytest.mark.parametrize(
    ("name", "opset"),
    [*BY_DEFAULT, *slow([("transformer", 24), *(x for x in OPSETS if x not in BY_DEFAULT)])],
)
def test_decoding(name: str, opset: int, tmp_path: Path) -> None:
    def write_programs(programs: list[Program]) -> dict[str, Callable[..., Any]]:
        write(programs, tmp_path, opset=opset)
        return runner.load(tmp_path, threads=1)

    check_decoding(name, write_programs, **TOLERANCE)
    attends = opset >= 23
    if name == "transformer":
        assert nodes_of(tmp_path / "encode.onnx")["Attention"] == attends
        assert nodes_of(tmp_path / "decode_step.onnx")["Attention"] == 2 * attends
    if name in ("transformer", "language model"):
        assert count_joins(tmp_path / "decode_step.onnx") == attends


# Masks and scores.


@keras.saving.register_keras_serializable(package="heed_tests")
class Attend(L.Layer):
    """`dot_product_attention` with arguments made from extra inputs."""

    def __init__(self, arguments: Callable[..., dict[str, Any]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._arguments = arguments

    def call(self, query: Any, key: Any, value: Any, *extra: Any) -> Any:
        return dot_product_attention(query, key, value, **self._arguments(query, key, *extra))


def attention_model(arguments: Callable[..., dict[str, Any]], *extra: Any) -> keras.Model:
    query = keras.Input((None, 4, 8), name="query")
    key, value = (keras.Input((None, 2, 8), name=name) for name in ("key", "value"))
    inputs = [query, key, value, *(keras.Input(s, dtype=d, name=n) for n, s, d in extra)]
    return keras.Model(inputs, Attend(arguments)(*inputs))


LENGTHS = ("lengths", (), "int32")
IDS = ("ids", (None,), "int32")
MASKS: dict[str, tuple[Callable[..., dict[str, Any]], Sequence[Any]]] = {
    "nothing": (lambda *_: {}, ()),
    "causal": (lambda *_: {"is_causal": True}, ()),
    "bottom_right": (lambda *_: {"mask": Mask.causal(align="bottom_right")}, ()),
    "window": (lambda *_: {"mask": Mask.window(2, 1)}, ()),
    "causal window": (lambda *_: {"mask": Mask.causal() & Mask.window(1, 1)}, ()),
    "prefix": (lambda *_: {"mask": Mask.prefix(2)}, ()),
    "lengths": (lambda q, k, n: {"mask": Mask.lengths(n % 4)}, (LENGTHS,)),
    "causal lengths": (
        lambda q, k, n: {"mask": Mask.lengths(n % 4), "is_causal": True},
        (LENGTHS,),
    ),
    "segments": (lambda q, k, ids: {"mask": Mask.segments(ids % 2)}, (IDS,)),
    "dense": (lambda q, k, ids: {"mask": (ids > 9)[:, None, None, :]}, (IDS,)),
    "dense, one for all": (lambda q, k: {"mask": q[:1, :, 0, 0][:, None, :, None] > 0}, ()),
    "bias": (
        lambda q, k: {
            "bias": keras.ops.where(
                k[:, None, None, :, 0, 0] > 0.3, -np.inf, k[:, None, None, :, 1, 1]
            ),
            "soft_cap": 2.0,
            "scale": 0.7,
        },
        (),
    ),
    "alibi": (
        lambda q, k: {"alibi_slopes": np.array([0.1, 0.2, 0.3, 0.4], "float32"), "is_causal": True},
        (),
    ),
}


# Others contain them.
SIMPLE = ("causal", "window", "lengths", "dense, one for all")


@pytest.mark.parametrize("opset", [23, *slow([17])])
@pytest.mark.parametrize(
    "name",
    [*(name for name in MASKS if name not in SIMPLE), *slow(SIMPLE)],
)
def test_mask(name: str, opset: int, tmp_path: Path) -> None:
    arguments, extra = MASKS[name]
    nodes = check_agreement(attention_model(arguments, *extra), tmp_path, opset=opset)
    assert nodes["Attention"] == (1 if opset >= 23 else 0)


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("causal", [False, True])
def test_rows_that_see_nothing_are_0(causal: bool, opset: int, tmp_path: Path) -> None:
    def arguments(query: Any, key: Any, ids: Any) -> dict[str, Any]:
        return {"mask": (ids > 0)[:, None, :, None], "is_causal": causal}

    serve = write_and_load(attention_model(arguments, IDS), tmp_path, opset=opset)["serve"]
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 5, heads, 8)).astype("float32") for heads in (4, 2, 2))
    ids = np.array([[1, 0, 1, 0, 1], [0, 0, 0, 0, 0]], "int32")
    (output,) = serve(query=query, key=key, value=value, ids=ids).values()
    assert np.all(output[ids == 0] == 0)
    assert np.all(np.any(output[ids == 1] != 0, axis=-1))


# Files.


def dense(width: int = WIDTH) -> keras.Model:
    x = keras.Input((None, width), name="x")
    return with_weights(keras.Model(x, L.Dense(64, activation="tanh")(x)))


@pytest.mark.slow
def test_the_same_twice(tmp_path: Path) -> None:
    model = classifier(CLASSIFIERS["padded"][0])
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_and_load(model, tmp_path / name)
    one, other = ((tmp_path / name / "model.onnx").read_bytes() for name in ("a", "b"))
    assert one == other


def test_external_data_and_names(tmp_path: Path) -> None:
    nodes = check_agreement(dense(4 * WIDTH), tmp_path, external_above=1000)
    assert nodes["MatMul"] == 1
    model = onnx.load(tmp_path / "model.onnx")
    assert (model.producer_name, model.producer_version) == ("heed", heed.__version__)
    assert [x.name for x in (*model.graph.input, *model.graph.output)] == ["x", "output_0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert (
        (tmp_path / "model.onnx.data").stat().st_size
        >= 4 * 4 * WIDTH * 64
        > (tmp_path / "model.onnx").stat().st_size
    )


def test_float16_halves_the_weights(tmp_path: Path) -> None:
    model, sizes = dense(512), []
    for precision in ("float32", "float16"):
        folder = tmp_path / precision
        folder.mkdir()
        serve = write_and_load(model, folder, precision=precision)["serve"]
        x = draw_inputs(model, 2, 3)["x"] * 0.1
        np.testing.assert_allclose(serve(x=x)["output_0"], model(x), atol=5e-3)
        sizes.append((folder / "model.onnx").stat().st_size)
    assert sizes[1] < 0.52 * sizes[0]


def test_a_weight_that_is_too_large_for_float16(tmp_path: Path) -> None:
    model = dense()
    model.weights[0].assign(np.where(np.arange(WIDTH) % 2, 1e5, -1e5)[:, None] * np.ones(64))
    model.weights[1].assign(np.zeros(64))
    serve = write_and_load(model, tmp_path, precision="float16")["serve"]
    assert np.all(serve(x=np.ones((1, 1, WIDTH)))["output_0"] == 0)


def test_mixed_precision(tmp_path: Path) -> None:
    x = keras.Input((None, WIDTH), name="x")
    y = layers.MultiHeadAttention(2, 8, dtype="mixed_float16")(x, x, use_causal_mask=True)
    model = with_weights(keras.Model(x, y))
    serve = write_and_load(model, tmp_path)["serve"]
    given = draw_inputs(model, 2, 5)["x"]
    found = serve(x=given)["output_0"]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, model(given), atol=2e-2)
    assert nodes_of(tmp_path / "model.onnx")["Attention"] == 1


class Other(L.Layer):
    """A layer of one function."""

    def __init__(self, function: Callable[[Any], Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._function = function

    def call(self, x: Any) -> Any:
        return self._function(x)

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype)


def other(function: Callable[[Any], Any]) -> keras.Model:
    x = keras.Input((None,), name="x")
    return keras.Model(x, Other(function, name="strange")(x))


def changes_a_variable() -> keras.Model:
    counter = tf.Variable(0.0)
    return other(lambda x: x + counter.assign_add(1.0))


def of_looked_up(lookup: Any, **options: Any) -> keras.Model:
    x = keras.Input(name="x", **options)
    return keras.Model(x, lookup(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: other(tf.math.lgamma),
            r"ONNX: `Lgamma` of `.*strange.*/Lgamma` cannot be converted: heed has no ONNX form",
        ),
        (changes_a_variable, r"`AssignAddVariableOp` of .* it changes a variable"),
        (
            lambda: other(lambda x: tf.cast(tf.cast(x, "bfloat16") * 2, "float32")),
            "onnxruntime has no bfloat16",
        ),
        (
            lambda: of_looked_up(
                L.IntegerLookup(vocabulary=[3, 5, 7]), shape=(None,), dtype="int64"
            ),
            "reads a table",
        ),
        (
            lambda: of_looked_up(L.StringLookup(vocabulary=["a"]), shape=(1,), dtype="string"),
            "the input `x` is text",
        ),
    ],
    ids=["no operator", "a variable", "bfloat16", "a table", "text"],
)
def test_unsupported_models(make: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        write_and_load(make(), tmp_path)


@pytest.mark.parametrize("options", [{"opset": 16}, {"opset": 99}, {"precision": "int8"}])
def test_unknown_options(options: dict[str, Any], tmp_path: Path) -> None:
    (name,) = options
    with pytest.raises(ExportError, match=f"`{name}` .*must be"):
        write_and_load(dense(), tmp_path, **options)
