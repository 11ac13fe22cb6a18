"""CTranslate2 model folders give heed's tokens and log-probabilities; other options are refused by name."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from heed.config import FLAG, option
from heed.export import ExportError
from heed.export import ctranslate2 as export
from heed.export.formats import FORMATS, ExportJob
from heed.layers import LearnedPositions
from heed.models import (
    LanguageModel,
    LanguageModelConfig,
    RecurrentTranslator,
    RecurrentTranslatorConfig,
    Transformer,
    TransformerConfig,
    VisionTransformer,
    VisionTransformerConfig,
    generate,
)
from heed.seq2seq import RunFolder, Shipment, TextTask, start_run
from heed.seq2seq.runs.trained_model import make_model, write_trained
from tests.models.builders import prompts, randomise, sources
from tests.seq2seq import tiny
from tests.slow import slow

ctranslate2 = pytest.importorskip("ctranslate2")
runner = pytest.importorskip("heed.export.runners._ctranslate2")
SIZES = {
    "source_vocabulary_size": 13,
    "target_vocabulary_size": 15,
    "width": 24,
    "num_heads": 4,
    "feed_forward_width": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "max_length": 64,
    "tie_embeddings": False,
}
LENGTH = 8
EPSILON = float(np.finfo("float32").eps)


def model_of(seed: int = 0, **changes: Any) -> Transformer:
    """Return a model with weights of order 1, so that the likeliest token is clear and depends on the whole input."""
    keras.utils.set_random_seed(seed)
    return randomise(Transformer(TransformerConfig(**{**SIZES, **changes})), seed)


def language_model_of(seed: int = 0, **changes: Any) -> LanguageModel:
    keras.utils.set_random_seed(seed)
    sizes = {name: SIZES[name] for name in ("width", "num_heads", "feed_forward_width")}
    sizes |= {"vocabulary_size": 15, "layers": 1, "max_length": 64, "tie_embeddings": False}
    return randomise(LanguageModel(LanguageModelConfig(**{**sizes, **changes})), seed)


def log_probabilities(logits: Any, tokens: np.ndarray) -> np.ndarray:
    """Return the log-probabilities (B, T) of the tokens."""
    found = np.asarray(keras.ops.log_softmax(logits, axis=-1))
    return np.take_along_axis(found, tokens[:, :, None], axis=-1)[:, :, 0]


def effect(
    model: Any, answer: Callable[[], np.ndarray], step: Callable[[np.ndarray], Any]
) -> float:
    """Return an answer's largest change in four draws of changes to all weights, each up to `step` of the weight."""
    before, weights = answer(), model.get_weights()
    rng, found = np.random.default_rng(0), []
    for _ in range(4):
        model.set_weights([w + rng.uniform(-1, 1, w.shape) * step(w) for w in weights])
        found.append(np.abs(answer() - before).max())
    model.set_weights(weights)
    return float(max(found))


def rounding(model: Any, answer: Callable[[], np.ndarray]) -> float:
    """Return a bound on the difference of two float32 computations of an answer, in any order of summation.

    A sum of n products, in any order, is exact for weights that are off by some sqrt(n) epsilons, rarely more (Higham
    and Mary 2019, "A New Approach to Probabilistic Rounding Error Analysis"); each of the two has such a sum.
    """
    terms = max(len(w) for w in model.get_weights() if w.ndim > 1)
    return effect(model, answer, lambda w: 2 * np.sqrt(terms) * EPSILON * np.abs(w))


def assert_translates(model: Transformer, folder: Path, source: np.ndarray) -> Any:
    """Compare tokens; return the programs."""
    programs = runner.load(folder, threads=1)
    found = programs["translate"](source=source, max_length=LENGTH)["tokens"]
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, np.asarray(generate(model, source, max_length=LENGTH)))
    return programs


def assert_agrees(model: Transformer, folder: Path, source: np.ndarray) -> None:
    """Compare tokens, and the log-probabilities of random targets up to rounding."""
    programs = assert_translates(model, folder, source)
    rng, size = np.random.default_rng(0), model.config.target_vocabulary_size
    target = rng.integers(3, size, (len(source), 9)).astype("int32")
    inputs = np.concatenate([np.full((len(source), 1), 1, "int32"), target], axis=1)
    labels = np.concatenate([target, np.full((len(source), 1), 2, "int32")], axis=1)

    def answer() -> np.ndarray:
        return log_probabilities(model({"source": source, "target": inputs}), labels)

    scored = ctranslate2.Translator(str(folder), intra_threads=1).score_batch(
        [[str(i) for i in row if i] for row in source],
        [[str(i) for i in row] for row in target],
        max_input_length=0,
    )
    found = np.array([one.log_probs for one in scored])
    expected, atol = answer(), rounding(model, answer)
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
    target[1, 4], target[1, 5:] = 2, 0  # one target with an end, others without
    found = programs["probabilities"](source=source, target=target)
    expected = np.exp(expected[:, :-1])
    expected[1, 4] = np.exp(
        log_probabilities(model({"source": source, "target": inputs})[:, :-1], target)[1, 4]
    )
    expected[1, 5:] = 0
    np.testing.assert_allclose(found["probabilities"], expected, rtol=0, atol=atol)


SUPPORTED: list[Any] = [
    {
        "position": "learned",
        "encoder_layers": 2,
        "decoder_layers": 2,
        "norm_first": False,
        "normalization": "rms",
        "use_bias": False,
        "gated": True,
        "activation": "silu",
    },
    {"key_dim": 10, "num_key_value_heads": 1, "position": "rotary"},
    {"width": 30, "num_heads": 5, "position": "alibi"},  # no power of two
    *slow(
        [
            {"position": "relative", "encoder_layers": 2},
            {"position": "learned", "encoder_layers": 2, "decoder_layers": 2},
            {"norm_first": False, "normalization": "rms", "use_bias": False},
            {"gated": True, "activation": "silu", "normalization": "rms", "use_bias": False},
            {"source_vocabulary_size": 15, "share_embeddings": True, "tie_embeddings": True},
            *({"position": one} for one in ("rotary", "alibi")),
            *({"position": "rotary", "num_key_value_heads": heads} for heads in (1, 2)),
            {"position": "relative", "num_key_value_heads": 1},
            {"position": "sinusoidal"},
            {"norm_first": False, "scale_embeddings": False, "normalize_embeddings": True},
            {"activation": "gelu", "norm_epsilon": 0.3},
            {"tie_embeddings": True},
            {"gated": True, "activation": "gelu"},
            *({"activation": one} for one in ("swish", "tanh", "sigmoid")),
            {"key_dim": 10},
            {"width": 30, "num_heads": 3, "decoder_layers": 2},
        ]
    ),
]


@pytest.mark.parametrize("options", SUPPORTED, ids=str)
def test_the_same_tokens_and_probabilities(options: dict[str, Any], tmp_path: Path) -> None:
    model = model_of(1, **options)
    export.write(model, tmp_path)
    assert_agrees(model, tmp_path, sources(6, 9, 1, 13))


def test_other_special_tokens(tmp_path: Path) -> None:
    """Only decoding is tested: targets of `assert_agrees` contain them."""
    model = model_of(1, pad_id=5, start_id=7, end_id=3)
    source = sources(6, 9, 1, 13)
    export.write(model, tmp_path)
    assert_translates(model, tmp_path, np.select([source == 0, source == 5], [5, 8], source))


@pytest.mark.parametrize("position", ["relative", *slow(["sinusoidal", "alibi", "rotary"])])
def test_far_positions(position: str, tmp_path: Path) -> None:
    """Beyond 128 tokens T5 has a single bucket, and CTranslate2 rounds logarithms differently."""
    model = model_of(2, position=position)
    export.write(model, tmp_path, longest=300)
    source = np.random.default_rng(0).integers(3, 13, (2, 280)).astype("int32")
    assert_agrees(model, tmp_path, source)
    target = np.random.default_rng(1).integers(3, 15, (1, 250)).astype("int32")
    inputs = np.concatenate([np.ones((1, 1), "int32"), target[:, :-1]], axis=1)
    logits = model({"source": source[:1], "target": inputs})
    scored = ctranslate2.Translator(str(tmp_path), intra_threads=1).score_batch(
        [[str(i) for i in source[0]]], [[str(i) for i in target[0]]]
    )
    expected = log_probabilities(logits, target)[0]
    np.testing.assert_allclose(scored[0].log_probs[:250], expected, atol=5e-4)


def test_positions_beyond_the_table_are_refused(tmp_path: Path) -> None:
    for position in ("alibi", "sinusoidal", "learned"):
        folder = tmp_path / position
        folder.mkdir()
        model = model_of(position=position, max_length=20)
        export.write(model, folder, longest=20)
        translate = runner.load(folder, 1)["translate"]
        translate(source=np.full((1, 20), 5), max_length=5)
        with pytest.raises(ValueError, match=r"not be empty, .* at most 20"):
            translate(source=np.full((1, 21), 5), max_length=5)


def test_bad_inputs_of_the_runner(tmp_path: Path) -> None:
    export.write(model_of(position="rotary"), tmp_path)
    translate = runner.load(tmp_path, 1)["translate"]
    with pytest.raises(ValueError, match=r"source must not be empty, .*tokens"):
        translate(source=np.array([[5, 6], [0, 0]]), max_length=5)
    with pytest.raises(ValueError, match=r"ids must be \(B, S\), with padding"):
        translate(source=np.array([[5, 0, 6]]), max_length=5)
    assert translate(source=np.zeros((0, 4), "int32"), max_length=5)["tokens"].shape == (0, 5)


LANGUAGE_MODELS: list[Any] = [
    {"position": "relative"},
    {"qk_norm": True, "num_key_value_heads": 1, "layers": 2},
    {"norm_first": False, "gated": True, "tie_embeddings": True, "num_key_value_heads": 2},
    *slow([{}, {"qk_norm": True}]),
    *slow({"position": one} for one in ("sinusoidal", "learned", "alibi")),
]


@pytest.mark.parametrize("options", LANGUAGE_MODELS, ids=str)
def test_language_models(options: dict[str, Any], tmp_path: Path) -> None:
    model = language_model_of(3, **options)
    export.write(model, tmp_path)
    prompt = prompts(6, 5, 2, 15)
    expected = np.asarray(generate(model, prompt=prompt, max_length=LENGTH))
    found = runner.load(tmp_path, threads=1)["generate"](prompt=prompt, max_length=LENGTH)
    np.testing.assert_array_equal(found["tokens"], expected)
    tokens = np.random.default_rng(0).integers(3, 15, (3, 20)).astype("int32")
    logits = model(np.concatenate([np.ones((3, 1), "int32"), tokens[:, :-1]], axis=1))
    scored = ctranslate2.Generator(str(tmp_path), intra_threads=1).score_batch(
        [["1", *map(str, row)] for row in tokens]
    )
    found = np.array([one.log_probs for one in scored])
    np.testing.assert_allclose(found, log_probabilities(logits, tokens), atol=2e-4)


@pytest.mark.parametrize(
    ("quantization", "smaller"),
    [("int8", 2.5), *slow([("bfloat16", 1.9), ("float32", 1.0), ("float16", 1.9)])],
)
def test_quantization(quantization: str, smaller: float, tmp_path: Path) -> None:
    """Files get smaller, and log-probabilities change at most by the effect of rounding.

    CTranslate2 computes in float32 here: what it computes in by default, and how well, depends on the CPU.
    """
    model = model_of(4, width=64, feed_forward_width=128, position="rotary")
    for one in model.trainable_weights:  # smaller, so that they do not amplify rounding
        if len(one.shape) > 1:
            one.assign(one * 0.4)
    folders = {name: tmp_path / name for name in ("float32", "chosen")}
    for name, folder in folders.items():
        folder.mkdir()
        export.write(model, folder, quantization=quantization if name == "chosen" else name)
    sizes = {name: (folder / "model.bin").stat().st_size for name, folder in folders.items()}
    assert sizes["float32"] / sizes["chosen"] >= smaller
    source, target = sources(4, 9, 1, 13), np.random.default_rng(0).integers(3, 15, (4, 6))

    def answer() -> np.ndarray:
        inputs = {"source": source, "target": np.insert(target, 0, 1, axis=1)[:, :-1]}
        return log_probabilities(model(inputs), target)

    scored = ctranslate2.Translator(
        str(folders["chosen"]), intra_threads=1, compute_type="float32"
    ).score_batch(
        [[str(i) for i in row if i] for row in source], [[str(i) for i in row] for row in target]
    )
    found = np.array([one.log_probs[:6] for one in scored])
    error = np.abs(found - answer()).max()
    # Half the distance between representable numbers.
    step = {
        "float32": lambda w: 0 * w,
        "float16": lambda w: 2.0**-11 * np.abs(w),
        "bfloat16": lambda w: 2.0**-8 * np.abs(w),
        "int8": lambda w: np.abs(w).max(axis=0, keepdims=True) / 254,
    }[quantization]
    bound = rounding(model, answer) + effect(model, answer, step)
    assert error < bound
    if quantization != "float32":
        assert error > 1e-5  # weights are rounded


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"soft_cap": 3.0}, r"soft_cap=3\.0"),
        ({"sliding_window": 4}, "sliding_window=4"),
        ({"sinks": True}, "sinks=True"),
        ({"parallel": True, "score_scale": 0.5}, r"score_scale=0\.5, parallel=True"),
        (
            {"position": "rotary", "rotary_base": 9.0, "rotary_dim": 2, "rotary_pattern": 2},
            r"rotary_base=9\.0, rotary_dim=2, rotary_pattern=2",
        ),
        ({"qk_norm": True}, "qk_norm=True"),
        ({"value_dim": 5}, "value_dim=5 beside heads of width 6"),
        ({"activation": "mish"}, "activation='mish'"),
        ({"soft_cap": 2.0, "sinks": True}, r"soft_cap=2\.0, sinks=True"),
    ],
    ids=str,
)
def test_unsupported_options_are_refused_by_name(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = Transformer(TransformerConfig(**{**SIZES, **options}))
    ending = "saved_model, litert and onnx can$"
    with pytest.raises(ExportError, match=f"^CTranslate2 has no form of {message}: {ending}"):
        export.write(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_new_option_is_refused_by_its_name() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class NewConfig(TransformerConfig):
        new: bool = option(False, FLAG, "an option that CTranslate2 does not know")

    for value, expected in ((False, []), (True, ["new=True"])):
        # A width of values that is that of keys is no option.
        model = Transformer(NewConfig(**SIZES, value_dim=6, new=value))
        assert list(export._unsupported_options(model)) == expected


def test_other_models_are_refused(tmp_path: Path) -> None:
    recurrent = RecurrentTranslator(RecurrentTranslatorConfig(13, 15, width=8))
    for other in (LearnedPositions(4), recurrent):
        with pytest.raises(ExportError, match=f"no other model: .*: {type(other).__name__}"):
            export.write(other, tmp_path)
    pictures = VisionTransformer(
        VisionTransformerConfig(image_size=8, patch_size=4, width=24, num_heads=4, layers=1)
    )
    config = TransformerConfig(**{**SIZES, "source_vocabulary_size": None})
    with pytest.raises(ExportError, match="no form of encoder=VisionTransformer: "):
        export.write(Transformer(config, encoder=pictures), tmp_path)


def test_arguments(tmp_path: Path) -> None:
    model = model_of()
    with pytest.raises(ExportError, match=r"`quantization` of .*Received: 'int4'"):
        export.write(model, tmp_path, quantization="int4")
    with pytest.raises(ValueError, match=r"`longest` must be .*Received: longest=0"):
        export.write(model, tmp_path, longest=0)
    with pytest.raises(ExportError, match=r"`target_tokens` must .*3, of them 2 diff"):
        export.write(model, tmp_path, target_tokens=["a", "b", "a"])
    words = [f"w{i}" for i in range(15)]
    with pytest.raises(ExportError, match="'<unk>', or call padding alike"):
        export.write(model, tmp_path, target_tokens=words)
    assert not list(tmp_path.iterdir())


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ExportError, match=r"needs ctranslate2: pip install .*export"):
        export.write(model_of(), tmp_path)


ODD = ["", " ", "\n", "\r\n", "a b", "\t", "<unk> ", "￨", '"', "\\", "▁", "é", "\0", "😀", "<0x0A>"]


def test_odd_tokens(tmp_path: Path) -> None:
    """Ids and tokens map one to one, for any tokens."""
    tokens = ["<pad>", "<s>", "</s>", "<unk>", *ODD]
    size = len(tokens)
    model = model_of(source_vocabulary_size=size, target_vocabulary_size=size, decoder_layers=2)
    export.write(model, tmp_path, source_tokens=tokens, target_tokens=tokens)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("config.json", "model.bin", "shared_vocabulary.json"),
    ]
    source = np.stack([np.roll(np.arange(4, size), i) for i in range(6)]).astype("int32")
    programs = assert_translates(model, tmp_path, source)
    found = programs["translate"](source=source, max_length=LENGTH)["tokens"]
    assert len(set(found.ravel().tolist()) & set(range(4, size))) > 4
    translator = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    one = translator.translate_batch(
        [["", "\n", "no such token"]], beam_size=1, suppress_sequences=[["<pad>"], ["<s>"]]
    )
    ids = [tokens.index(text) for text in one[0].hypotheses[0]]
    expected = np.asarray(generate(model, np.array([[4, 6, 3]]), max_length=256))[0]
    assert ids[:5] == [i for i in expected.tolist() if i not in (0, 2)][:5]


def test_repeated_tokens() -> None:
    assert export.make_unique(["a", "a", "a<1>", "b"]) == ["a", "a<1>", "a<1><2>", "b"]


def vocabulary(shipment: Any, folder: Path, side: str) -> list[str]:
    """Write a run as `export` does; return the names of the tokens of a side."""
    folder.mkdir()
    job = ExportJob(shipment.model, [], shipment, FORMATS["ctranslate2"], "float32", {}, LENGTH)
    export.write_artefact(job, folder)
    return json.loads((folder / f"{side}_vocabulary.json").read_text())


def test_the_tokens_of_numbers_have_their_names(finished_run: RunFolder, tmp_path: Path) -> None:
    names = vocabulary(Shipment(finished_run), tmp_path / "out", "source")
    assert names == ["<pad>", "<s>", "</s>", "<unk>", *"0123456789", "en", "de"]
    target = json.loads((tmp_path / "out" / "target_vocabulary.json").read_text())
    task: Any = finished_run.task()
    assert target[4:] == task.subwords.pieces(range(4, task.target_vocabulary_size))


@pytest.mark.parametrize(
    "options", [{"unit": "word"}, *slow([{}, {"vocabulary": "shared"}])], ids=str
)
def test_the_tokens_of_texts_have_their_names(options: dict[str, Any], tmp_path: Path) -> None:
    source, target = tiny.write_parallel_text(tmp_path)
    text = source.read_text().replace("bb", "<unk>").replace("cc", "</s>")
    source.write_text(text)
    task = TextTask.create(source=source, target=target, vocabulary_size=60, **options)
    run = start_run(tmp_path / "run", task, **{**tiny.TINY, "tie_embeddings": False})
    write_trained(run, [weight.numpy() for weight in make_model(run).weights], {"step": 0})
    side = "shared" if "vocabulary" in options else "source"
    names = vocabulary(Shipment(run), tmp_path / "out", side)
    assert len(names) == len(set(names)) == task.source_vocabulary_size
    ids = task.encode(text.splitlines()[0])
    assert [names[i] for i in ids[:-1] if i > 3] == [
        name for name, i in zip(task.source_labels(ids), ids, strict=False) if i > 3
    ]
