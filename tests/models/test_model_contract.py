"""What all models keep: files, gradients of both implementations, dropout, training, unknown sizes, configs."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed.models import (
    LanguageModel,
    MaskedLanguageModel,
    RecurrentTranslator,
    Transformer,
    VisionTransformer,
)
from heed.models.config import POSITIONS
from tests.backend import is_dense, vjp
from tests.models.builders import (
    QUESTIONS,
    TARGET,
    images,
    masked_config,
    small_config,
    small_language_model,
    small_masked,
    small_model,
    small_recurrent,
    small_vision,
    sources,
    vision_config,
)
from tests.slow import slow


def translation() -> dict[str, Any]:
    return {"source": sources(3, vocabulary=9), "target": TARGET}


NEXT = np.pad(TARGET[:, 1:], ((0, 0), (0, 1)))
# How each model is made, what it reads, and the labels that it may learn.
MODELS: dict[str, Any] = {
    "transformer": (small_model, translation(), NEXT),
    "language": (small_language_model, TARGET, NEXT),
    "recurrent": (small_recurrent, translation(), NEXT),
    "vision": (small_vision, images(), np.arange(3)),
    "masked": (small_masked, QUESTIONS, QUESTIONS["tokens"]),
    "sequence": (small_masked, QUESTIONS, np.array([0, 3, 1])),
    "token": (small_masked, QUESTIONS, QUESTIONS["tokens"] % 5),
    "span": (small_masked, QUESTIONS, np.array([[4, 5], [4, 4], [3, 3]])),
}


def made(kind: str, **changes: Any) -> tuple[Any, Any]:
    """Return a model and what it reads."""
    make, inputs, _ = MODELS[kind]
    return make(**({"name": kind} if make is small_masked else {}), **changes), inputs


def cases(*default: Any, slowly: Any = ()) -> Any:
    """Parametrize kinds of models and changes of their configs."""
    others = [case for case in slowly if case not in default]
    return pytest.mark.parametrize(("kind", "changes"), [*default, *slow(others)], ids=str)


ALL = {"num_key_value_heads": 1, "normalization": "rms", "gated": True, "qk_norm": True}
SHARED = {"source_vocabulary_size": 9, "share_embeddings": True}
BY_POSITION = [
    (kind, {"position": position})
    for kind in ("transformer", "language", "masked")
    for position in POSITIONS
]
BY_ATTENTION = [("recurrent", {"attention": x}) for x in ("additive", "dot", "general", "scaled")]
OF_IMAGES = [
    ("vision", {"pooling": "mean", "num_classes": 5}),
    ("vision", {"position": "sinusoidal", "num_classes": 5}),
    ("vision", {"norm_first": False, "pooling": "mean", "position": "sinusoidal"}),
]


@cases(
    ("transformer", {"position": "learned", "tie_embeddings": False}),
    ("transformer", SHARED),
    ("language", {"layers": 2, "tie_embeddings": False, "num_key_value_heads": 1, "gated": True}),
    ("recurrent", {"attention": "none", "encoder_layers": 2, "tie_embeddings": False}),
    ("vision", {**ALL, "patch_size": (4, 3)}),
    ("masked", ALL),
    ("span", {}),
    slowly=[
        *BY_POSITION,
        *BY_ATTENTION,
        *OF_IMAGES,
        ("recurrent", {"attention": "location", "cell": "gru"}),
        ("transformer", {"norm_first": False}),
        ("masked", {"norm_first": False, "tie_embeddings": False}),
        ("sequence", {}),
        ("token", {}),
    ],
)
def test_it_is_built_without_data_and_comes_back(kind: str, changes: Any, tmp_path: Any) -> None:
    model, inputs = made(kind, **changes)
    paths = [weight.path for weight in model.weights]
    assert len(set(paths)) == len(paths)
    expected = model(inputs)
    assert [weight.path for weight in model.weights] == paths
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(loaded(inputs), expected)
    fresh = type(model).from_config(json.loads(json.dumps(model.get_config())))
    fresh.build()
    assert np.abs(np.asarray(fresh(inputs)) - np.asarray(expected)).max() > 1e-2
    model.save_weights(tmp_path / "model.weights.h5")
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(fresh(inputs), expected)


@cases(
    ("transformer", {"position": "relative"}),
    ("transformer", {"position": "learned"}),
    ("language", {"layers": 2, "sliding_window": 3, "sinks": True, **ALL}),
    ("recurrent", {"attention": "location", "tie_embeddings": False}),
    ("vision", {**ALL, "patch_size": (4, 3), "num_classes": 5}),
    *((kind, {}) for kind in ("masked", "sequence", "token", "span")),
    slowly=[*BY_POSITION, *BY_ATTENTION, *OF_IMAGES, ("recurrent", {"attention": "none"})],
)
def test_both_implementations_agree_and_every_weight_gets_a_dense_gradient(
    kind: str, changes: Any
) -> None:
    model, inputs = made(kind, **changes)
    found = []
    native = heed.info()["implementation"] == "native"
    for name in ("native", "portable")[1 - native :]:
        with heed.set_implementation(name):
            output, pull = vjp(
                lambda: model(inputs, training=True), variables=model.trainable_weights
            )
            read = keras.ops.where(output > -1e8, output, 0.0)  # the others are outside of a text
            gradients = pull(2 * read / np.prod(output.shape))
        found.append([output, *gradients])
        for weight, gradient in zip(model.trainable_weights, gradients, strict=True):
            assert is_dense(gradient), weight.path
            assert tuple(gradient.shape) == tuple(weight.shape)
            # The bias of keys adds the same to all scores of a query.
            if kind == "recurrent" or not weight.path.endswith("key/bias"):
                assert np.abs(gradient).max() > 0, weight.path
    for one, other in zip(found[0], found[-1], strict=True):
        scale = max(1.0, float(np.abs(np.where(one > -1e8, one, 0)).max()))
        np.testing.assert_allclose(one, other, atol=3e-5 * scale)


@cases(
    ("transformer", {"dropout": 0.5}),
    ("transformer", {"attention_dropout": 0.5}),
    ("recurrent", {"dropout": 0.5}),
    ("vision", {"dropout": 0.5}),
    ("span", {"dropout": 0.5}),
    slowly=[(kind, {"dropout": 0.5}) for kind in ("language", "masked", "sequence", "token")],
)
def test_dropout_acts_in_training_only(kind: str, changes: Any) -> None:
    model, inputs = made(kind, **changes)
    np.testing.assert_array_equal(model(inputs), model(inputs, training=False))
    one, other = (np.asarray(model(inputs, training=True)) for _ in range(2))
    assert np.abs(one - other).max() > 1e-3


@pytest.mark.usefixtures("compiled")
@cases(
    ("transformer", {"position": "relative"}),
    ("recurrent", {"attention": "location"}),
    ("span", {"max_length": 90}),  # PyTorch infers shapes from lengths of up to 89
    slowly=[
        *(("transformer", {"position": x}) for x in POSITIONS if x not in ("learned", "relative")),
        *((kind, {"max_length": 90}) for kind in ("masked", "sequence", "token")),
    ],
)
def test_unknown_sizes_in_a_functional_model(kind: str, changes: Any) -> None:
    model, inputs = made(kind, **changes)
    symbolic = {name: keras.Input((None,), dtype="int32", name=name) for name in inputs}
    outer = keras.Model(symbolic, model(symbolic))
    expected = np.asarray(model(inputs))
    lengths = {x.shape[1] for x in inputs.values()}
    batchless = tuple(None if n in lengths else n for n in expected.shape[1:])
    assert outer.output_shape == (None, *batchless)
    np.testing.assert_allclose(outer(inputs), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "policy", "jit_compile"),
    [
        *((x, "float32", True) for x in ("transformer", "language", "vision")),
        *((x, policy, False) for x in MODELS for policy in ("float32", "mixed_float16")),
        *((x, "mixed_bfloat16", False) for x in ("transformer", "language", "vision", "masked")),
        ("transformer", "mixed_float16", True),
    ],
)
@pytest.mark.usefixtures("compiled")
def test_fit_lowers_the_loss(kind: str, policy: str, jit_compile: bool) -> None:
    changes = {"vision": {"num_classes": 3}, "recurrent": {"attention": "location", "cell": "gru"}}
    keras.utils.set_random_seed(0)
    model, inputs = made(kind, dtype=policy, dropout=0.1, **changes.get(kind, {}))
    repeated, labels = keras.tree.map_structure(
        lambda x: np.tile(x, (8, *[1] * (x.ndim - 1))), (inputs, MODELS[kind][2])
    )
    ignored = {"ignore_class": 0} if labels is not None and MODELS[kind][2] is NEXT else {}
    with heed.set_implementation("portable" if jit_compile else "auto"):
        model.compile(
            keras.optimizers.Adam(0.03),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True, **ignored),
            jit_compile=jit_compile,
        )
        assert model.jit_compile == jit_compile
        history = model.fit(repeated, labels, batch_size=24, epochs=15, verbose=0).history["loss"]
    assert np.all(np.isfinite(history))
    assert history[-1] < 0.7 * history[0]
    assert model.dtype_policy.name == policy
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    assert keras.backend.standardize_dtype(model(inputs).dtype) == "float32"


@cases(
    ("transformer", {}),
    ("recurrent", {"attention": "additive"}),
    ("recurrent", {"attention": "none"}),
    ("span", {}),
    slowly=[("masked", {}), ("sequence", {}), ("token", {})],
)
def test_nothing_but_padding_gives_finite_outputs(kind: str, changes: Any) -> None:
    model, inputs = made(kind, **changes)
    batch = {name: x if name == "target" else np.zeros_like(x) for name, x in inputs.items()}
    assert np.all(np.isfinite(model(batch)))


@pytest.mark.parametrize(
    "cls", [Transformer, LanguageModel, MaskedLanguageModel, RecurrentTranslator, VisionTransformer]
)
def test_a_config_is_needed(cls: Any) -> None:
    with pytest.raises(TypeError, match=f"`config` must be a {cls.config_class.__name__}"):
        cls({"width": 8})


def test_configs_travel_as_plain_values() -> None:
    """Through JSON, frozen, and with Python's numbers in the place of NumPy's."""
    configs = [model.config for model in (small_language_model(), small_recurrent())]
    configs += [
        small_config(width=np.int64(16), dropout=np.float32(0.5), position="alibi"),
        masked_config(pad_id=12, start_id=3, end_id=7, mask_id=0),
        vision_config(image_size=[4, np.int64(6)], num_classes=3),
    ]
    for config in configs:
        again = type(config).from_dict(json.loads(json.dumps(config.to_dict())))
        assert {config: 1}[again] == 1
        with pytest.raises(ValueError, match=r"fields of \w+ only.*Received: depth$"):
            type(config).from_dict({**config.to_dict(), "depth": 3})
        with pytest.raises(AttributeError, match="cannot assign"):
            config.width = 16
    with pytest.raises(ValueError, match="target_vocabulary_size"):
        type(configs[2]).from_dict({"source_vocabulary_size": 3})
