"""GGUF files give the model's logits, in NumPy and in llama.cpp; what llama.cpp lacks is refused by name."""

from __future__ import annotations

import importlib.util
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from heed.export import ExportError
from heed.export import gguf as export
from heed.export.errors import ExportOptionError
from heed.models import LanguageModel, LanguageModelConfig
from tests.acceleration import hub_models
from tests.export.gguf_reference import File
from tests.models.builders import randomise, small_model
from tests.slow import slow

gguf = pytest.importorskip("gguf")
EPSILON = float(np.finfo("float32").eps)
SIZES: dict[str, Any] = {
    "vocabulary_size": 40,
    "width": 32,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "feed_forward_width": 64,
    "layers": 2,
    "normalization": "rms",
    "activation": "silu",
    "gated": True,
    "use_bias": False,
}
POST = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
GEMMA_2 = {"final_logit_soft_cap": 5.0, "query_head_dim_normalize": False}
GEMMA_3 = {**POST, "use_query_key_norm": True, "attention_logit_soft_cap": None, "num_layers": 7}
LLAMA_3 = {
    "rope_frequency_adjustment_factor": 8.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_pretraining_sequence_length": 16,
    "tie_word_embeddings": True,
}
# Families of KerasHub: a small model, changes of it, and the architecture.
HUB: dict[str, tuple[str, dict[str, Any], str]] = {
    "Llama": ("Llama", {"rope_position_scaling_factor": 2.0}, "llama"),
    "Llama 3": ("Llama 3", LLAMA_3, "llama"),
    "Mistral": ("Mistral", {"sliding_window": 64, "head_dim": 8}, "llama"),
    "Qwen": ("Qwen", {"use_sliding_window_attention": False}, "qwen2"),
    "Qwen 3": ("Qwen 3", {"sliding_window_size": 64, "layer_norm_epsilon": 0.1}, "qwen3"),
    "Gemma": ("Gemma", {}, "gemma"),
    "Gemma 2": ("Gemma 2", GEMMA_2, "gemma2"),
    "Gemma 3": ("Gemma 3", {**GEMMA_3, "global_rope_scaling_factor": 8.0}, "gemma3"),
}
OWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "own logits": {"tie_embeddings": False, "num_key_value_heads": None},
    "biases": {"use_bias": True, "scale_embeddings": False},
    "head norms": {"qk_norm": True, "key_dim": 6},
    "three biases": {"qkv_bias": True, "sliding_window": 16, "sliding_window_pattern": 2},
    "base and scale": {"rotary_base": 500.0, "score_scale": 0.7},
}
OTHERS = {"own logits": "qwen2", "head norms": "qwen3", "three biases": "qwen2"}


def own_model(**changes: Any) -> LanguageModel:
    keras.utils.set_random_seed(0)
    return randomise(LanguageModel(LanguageModelConfig(**{**SIZES, **changes})))


def hub_model(name: str) -> Any:
    pytest.importorskip("keras_hub", exc_type=ImportError)
    kind, changes, _ = HUB[name]
    return hub_models.task(kind, hub_models.build(kind, **changes))


def make(name: str) -> Any:
    return own_model(**OWN[name]) if name in OWN else hub_model(name)


def logits_of(model: Any, tokens: np.ndarray) -> np.ndarray:
    """Return the logits (T, V) of the graph, without a row's axis."""
    given = tokens[None]
    if not isinstance(model, LanguageModel):
        given = {"token_ids": given, "padding_mask": np.ones_like(given)}
        if "images" in (model.input if isinstance(model.input, dict) else {}):
            given["images"] = np.zeros((1, 0, 16, 16, 3), "float32")
    return keras.ops.convert_to_numpy(model(given))[0].astype(np.float64)


def some_tokens(count: int = 12) -> np.ndarray:
    return np.random.default_rng(1).integers(3, SIZES["vocabulary_size"], count).astype("int32")


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the RMS of the differences divided by the RMS of the expected numbers."""
    return math.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))


def products(model: Any) -> int:
    """Return the products that a number passes on its way to the logits."""
    layers = len(export._read_model(model).stack.layers)
    return 4 * layers + 1


CASES = [*OWN, *HUB]
BY_DEFAULT = ("plain", "own logits", "Gemma 3")


@pytest.mark.parametrize(
    "name", [*BY_DEFAULT, *slow(name for name in CASES if name not in BY_DEFAULT)]
)
def test_a_file_means_the_model(name: str, tmp_path: Path) -> None:
    model, tokens = make(name), some_tokens()
    notes = export.write(model, tmp_path / "model.gguf")
    assert [*tmp_path.iterdir()] == [tmp_path / "model.gguf"]
    file = File.read(tmp_path / "model.gguf")
    assert {*file.types.values()} == {"F32"}
    assert any("no tokenizer" in note for note in notes)
    expected = HUB[name][2] if name in HUB else OTHERS.get(name, "llama")
    assert file.architecture == expected
    # Each product of float32 numbers rounds its sum; weights of order 1 amplify that at most tenfold a layer.
    assert relative(file.logits(tokens), logits_of(model, tokens)) < 100 * products(model) * EPSILON


@pytest.mark.parametrize("precision", ["q8_0", *slow(["bfloat16", "q4_0"])])
def test_tables_are_rounded_and_nothing_else(precision: str, tmp_path: Path) -> None:
    model = own_model(scale_embeddings=False)
    exact, rounded = (tmp_path / name for name in ("exact.gguf", "rounded.gguf"))
    export.write(model, exact)
    export.write(model, rounded, precision=precision)
    first, second = File.read(exact), File.read(rounded)
    assert first.tensors.keys() == second.tensors.keys()
    for name, table in first.tensors.items():
        found = second.tensors[name]
        if table.ndim == 1:
            np.testing.assert_array_equal(found, table)
            continue
        blocks = np.abs(table).reshape(*table.shape[:-1], -1, 32).max(-1, keepdims=True)
        # Half a step of the integers, whose factor is a half-precision number; a whole one at the far end of -8 .. 7;
        # half of bfloat16's last bit.
        steps = {"q8_0": 0.5 / 127 + 2**-11, "q4_0": 1 / 8 + 2**-11, "bfloat16": 2**-8}[precision]
        bound = np.repeat(blocks * steps, 32, axis=-1).reshape(table.shape)
        assert (np.abs(found - table) <= bound).all(), name
        assert second.types[name] == {"bfloat16": "BF16"}.get(precision, precision.upper())
    assert rounded.stat().st_size < 0.8 * exact.stat().st_size


def test_rows_that_are_no_multiple_of_a_block_stay_exact(tmp_path: Path) -> None:
    model = own_model(width=36, num_heads=2)
    notes = export.write(model, tmp_path / "model.gguf", precision="q4_0")
    types = File.read(tmp_path / "model.gguf").types
    assert types["token_embd.weight"] == "F32"
    assert types["blk.0.ffn_down.weight"] == "Q4_0"
    assert any("no multiple of 32 stay in float32: token_embd.weight" in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"activation": "gelu"}, "activation='gelu'"),
        ({"rotary_dim": 4, "parallel": True}, "rotary_dim=4, parallel=True"),
        ({"rotary_pattern": 2}, "layers without positions"),
        (
            {"rotary_local_base": 9.0, "sliding_window": 16, "sliding_window_pattern": 2},
            "rotations by layer",
        ),
        *slow(
            [
                ({"position": "alibi"}, "position='alibi'"),
                ({"normalization": "layer"}, "normalization='layer'"),
                ({"norm_first": False}, "norm_first=False"),
                ({"gated": False}, "gated=False"),
                ({"sinks": True}, "sinks"),
                ({"soft_cap": 5.0}, "soft_cap=5.0"),
                ({"value_dim": 4}, "value_dim=4"),
                ({"normalize_embeddings": True}, "embedding_norm"),
            ]
        ),
    ],
)
def test_other_options_are_refused_by_name(
    changes: dict[str, Any], name: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=r"^llama\.cpp has no form of") as raised:
        export.write(own_model(**changes), tmp_path / "model.gguf")
    assert name in str(raised.value)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_several_rotations_are_refused_by_name(tmp_path: Path, monkeypatch: Any) -> None:
    data = export._read_model(hub_model("Gemma 2"))
    near, far = data.stack.layers[:2]
    far = replace(far, self_attention=replace(far.self_attention, rotation=1))
    rotation = replace(data.rotations[0], frequencies=data.rotations[0].frequencies / 2)
    changed = replace(
        data, stack=replace(data.stack, layers=(near, far)), rotations=(*data.rotations, rotation)
    )
    monkeypatch.setattr(export, "_read_model", lambda model: changed)
    with pytest.raises(ExportError, match=r"gemma2 with several rotations$"):
        export.write(None, tmp_path / "model.gguf")


def test_a_window_bounds_the_context(tmp_path: Path) -> None:
    model = own_model(sliding_window=20)
    assert any("at most 20 tokens" in note for note in export.write(model, tmp_path / "a.gguf"))
    assert File.read(tmp_path / "a.gguf").of("context_length") == 20
    with pytest.raises(ExportError, match="`context` must be at most 20"):
        export.write(model, tmp_path / "b.gguf", context=21)


@pytest.mark.parametrize("context", [0, -1, 2.5, True])
def test_a_context_is_a_positive_integer(context: Any, tmp_path: Path) -> None:
    with pytest.raises(ExportOptionError, match="`context` must be an integer >= 1"):
        export.write(None, tmp_path / "model.gguf", context=context)


def test_bad_models_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with pytest.raises(ExportError, match="no other model"):
        export.write(small_model(), file)
    with pytest.raises(ExportError, match="`precision` of gguf must be"):
        export.write(None, file, precision="int8")
    model = own_model()
    weight = model.decoder.blocks[1].feed_forward.output_dense.kernel
    weight.assign(np.full(weight.shape, np.nan))
    with pytest.raises(ExportError, match=r"blk\.1\.ffn_down\.weight .* not finite"):
        export.write(model, file)
    assert not [*tmp_path.iterdir()]


def test_an_interrupted_export_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "model.gguf"
    file.write_bytes(b"before")
    monkeypatch.setattr(gguf.quants, "quantize", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export.write(own_model(), file)
    assert [*tmp_path.iterdir()] == [file]
    assert file.read_bytes() == b"before"


TEXT = (
    "a cat sat on the mat",
    "the mat is flat,  and 1234 cats know it's so",
    "\u00e9t\u00e9!\nmany cats",
)


def sentencepiece_model(**options: Any) -> bytes:
    """Return a byte-pair model without normalisation, as Llama's."""
    import sentencepiece

    written = io.BytesIO()
    settings = {
        "model_type": "bpe",
        "vocab_size": 300,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "hard_vocab_limit": False,
        "character_coverage": 1.0,
        "minloglevel": 2,
        "pad_id": -1,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 3), model_writer=written, **{**settings, **options}
    )
    return written.getvalue()


def byte_pairs() -> tuple[dict[str, int], list[str]]:
    """Return a vocabulary and merges of Llama 3's kind, with a hole in the ids."""
    from heed.byte_pairs import bytes_of_letters

    special = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
    special += ("<|start_header_id|>", "<|end_header_id|>")
    merges = ["a t", "\u0120 c", "\u0120c at", "\u0120 m", "\u0120m at", "1 2", "12 3"]
    tokens = [*bytes_of_letters(), *(merge.replace(" ", "") for merge in merges)]
    tokens += ["\u0120flat"]  # no merge leads to it
    names = {token: i for i, token in enumerate(tokens)}
    return names | {token: len(tokens) + 3 + i for i, token in enumerate(special)}, merges


def with_tokenizer(name: str, **options: Any) -> Any:
    """Return a model of KerasHub that reads text."""
    hub = pytest.importorskip("keras_hub", exc_type=ImportError).models
    if name == "Llama":
        tokenizer = hub.LlamaTokenizer(sentencepiece_model(**options))
    else:
        vocabulary, merges = byte_pairs()
        tokenizer = hub.Llama3Tokenizer(vocabulary, merges, **options)
    backbone = hub_models.build(name, vocabulary_size=tokenizer.vocabulary_size() + 7)
    preprocessor = getattr(hub, f"{name.replace(' ', '')}CausalLMPreprocessor")(tokenizer)
    task = getattr(hub, f"{name.replace(' ', '')}CausalLM")
    return task(backbone=backbone, preprocessor=preprocessor)


def test_a_sentencepiece_model_goes_with_it(tmp_path: Path) -> None:
    model = with_tokenizer("Llama")
    assert not export.write(model, tmp_path / "model.gguf")
    tokenizer, settings = model.preprocessor.tokenizer, File.read(tmp_path / "model.gguf").settings
    tokens = settings["tokenizer.ggml.tokens"]
    count = tokenizer.vocabulary_size()
    assert tokens[:count] == tokenizer.get_vocabulary()
    assert len(tokens) == count + 7 == len(settings["tokenizer.ggml.scores"])
    types = settings["tokenizer.ggml.token_type"]
    assert types[:4] == [2, 3, 3, 6]  # unknown, <s>, </s>, a byte
    assert types[count:] == [5] * 7
    assert settings["tokenizer.ggml.model"] == "llama"
    assert settings["tokenizer.ggml.bos_token_id"] == tokenizer.start_token_id
    assert settings["tokenizer.ggml.eos_token_id"] == tokenizer.end_token_id
    assert settings["tokenizer.ggml.add_bos_token"] is True
    assert settings["tokenizer.ggml.add_space_prefix"] is True


def test_byte_pairs_go_with_it(tmp_path: Path) -> None:
    model = with_tokenizer("Llama 3")
    assert not export.write(model, tmp_path / "model.gguf")
    settings = File.read(tmp_path / "model.gguf").settings
    vocabulary, merges = byte_pairs()
    tokens, types = (settings[f"tokenizer.ggml.{x}"] for x in ("tokens", "token_type"))
    assert all(tokens[number] == token for token, number in vocabulary.items())
    assert [i for i, kind in enumerate(types) if kind == 3] == [
        number for token, number in vocabulary.items() if token.startswith("<|")
    ]
    assert len(tokens) == len({*tokens}) == model.backbone.vocabulary_size
    assert settings["tokenizer.ggml.merges"] == merges
    assert settings["tokenizer.ggml.eos_token_id"] == vocabulary["<|end_of_text|>"]
    assert settings["tokenizer.ggml.eot_token_id"] == vocabulary["<|eot_id|>"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces=True"),
        *slow(
            [
                ({"model_type": "unigram"}, "another model type than byte pairs"),
                ({"byte_fallback": False, "vocab_size": 60}, "byte_fallback=False"),
                ({"normalization_rule_name": "nmt_nfkc"}, "a normalisation of characters"),
            ]
        ),
    ],
)
def test_other_tokenizers_are_refused_by_name(
    options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    model = with_tokenizer("Llama", **options)
    with pytest.raises(ExportError, match="without `preprocessor`") as raised:
        export.write(model, tmp_path / "model.gguf")
    assert name in str(raised.value)


@pytest.fixture(scope="module")
def runner() -> Any:
    """Return the runner, which needs llama-cpp-python."""
    pytest.importorskip("llama_cpp")
    return importlib.import_module("heed.export.runners._gguf")


def error_bound(name: str, model: Any) -> float:
    """Return a bound on llama.cpp's relative error, in float32."""
    layers = len(export._read_model(model).stack.layers)
    if not name.startswith("Gemma"):
        return 100 * products(model) * EPSILON
    # It looks GELU up in a table: its argument and its value are half-precision numbers.
    return math.sqrt(layers) * 2 * 2**-11


@pytest.mark.parametrize("name", ["plain", *slow(name for name in CASES if name != "plain")])
def test_llama_cpp_decodes_the_same_tokens(name: str, tmp_path: Path, runner: Any) -> None:
    model, count = make(name), 14
    export.write(model, tmp_path / "model.gguf")
    context = runner.Context(tmp_path / "model.gguf", 64, 1)
    bound = error_bound(name, model)
    mine, theirs = some_tokens(4).tolist(), some_tokens(4).tolist()
    while len(mine) < count:
        logits = logits_of(model, np.array(mine, "int32"))[-1]
        best = np.sort(logits)[-2:]
        assert best[1] - best[0] > bound * np.std(logits)  # no tie
        mine.append(int(logits.argmax()))
    logits = context.read(theirs)
    while len(theirs) < count:
        theirs.append(int(logits.argmax()))
        logits = context.read(theirs[-1:])
    assert theirs == mine
    context.restart()
    found = context.read(mine, all_scores=True)
    context.close()
    assert relative(found, logits_of(model, np.array(mine, "int32"))) < bound


# The RMS error of one rounding, in parts of the RMS of the numbers: a step is a part of the largest number that shares
# it, in a block of 32 normal numbers some 2.07 of their RMS, and its error is evenly distributed.
ROUNDING = {"bfloat16": 2**-8 / 12**0.5, "q8_0": 2.07 / 127 / 12**0.5, "q4_0": 2.07 / 8 / 12**0.5}


@pytest.mark.parametrize("precision", slow(ROUNDING))
def test_llama_cpp_rounds_within_the_bound(precision: str, tmp_path: Path, runner: Any) -> None:
    model, tokens = LanguageModel(LanguageModelConfig(**SIZES)), some_tokens(24)
    export.write(model, tmp_path / "model.gguf", precision=precision)
    context = runner.Context(tmp_path / "model.gguf", 64, 1)
    found = context.read(tokens.tolist(), all_scores=True)
    context.close()
    error = relative(found, logits_of(model, tokens))
    # Independent of each other: of the tables, and of what they multiply, which llama.cpp rounds to 8 bits for "q4_0".
    expected = math.sqrt(2 * products(model)) * ROUNDING[precision]
    assert expected / 20 < error < 2 * expected


@pytest.mark.parametrize("name", ["Llama", "Llama 3"])
@pytest.mark.slow
def test_llama_cpp_reads_the_same_tokens(name: str, tmp_path: Path, runner: Any) -> None:
    import llama_cpp

    model = with_tokenizer(name)
    export.write(model, tmp_path / "model.gguf")
    context = runner.Context(tmp_path / "model.gguf", 64, 1)
    vocabulary = llama_cpp.llama_model_get_vocab(context.model)
    texts = (*TEXT, " a", "a  b\n\n c", "12345 \u20ac <|eot_id|> x", "flat", "")
    for text in texts:
        data, found = text.encode(), (llama_cpp.llama_token * 256)()
        count = llama_cpp.llama_tokenize(vocabulary, data, len(data), found, 256, True, True)
        inputs = model.preprocessor.generate_preprocess(text, sequence_length=100)
        ids, mask = (keras.ops.convert_to_numpy(inputs[x]) for x in ("token_ids", "padding_mask"))
        assert list(found[:count]) == ids[mask.astype(bool)].tolist(), text
    context.close()


def test_an_export_is_compared_where_llama_cpp_is(tmp_path: Path) -> None:
    from heed.export import export as export_folder

    model = own_model(scale_embeddings=False)
    done = export_folder(model, tmp_path / "folder", format="gguf", context=100)
    assert {x.name for x in done.path.iterdir()} == {
        *("manifest.json", "model.gguf", "run.py", "runtime.py")
    }
    assert File.read(done.path / "model.gguf").of("context_length") == 100
    if importlib.util.find_spec("llama_cpp") is None:
        assert done.agreement is None
        assert "the model was not run: that needs llama-cpp-python" in done.notes
    else:
        assert done.agreement is not None
        assert done.agreement.same == 1
        assert done.agreement.largest_difference < 1e-4
