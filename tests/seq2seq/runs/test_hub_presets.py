"""Runs that start from presets of KerasHub: the same outputs, the same texts, and training on from there."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import sentencepiece

from heed.models import explain_generate, generate
from heed.seq2seq import NumbersTask, TaskError, TextTask, Translator, open_origin, start_run, train
from heed.seq2seq.tasks.task import pad_rows
from tests.seq2seq import tiny

pytest.importorskip("keras_hub", exc_type=ImportError)
pytestmark = pytest.mark.slow

LINES = [
    "the cat sat on the mat",
    "the dog sat on the log",
    "a cat and 2 dogs' bones",
    "der hund und die katze",
    "ein hund sitzt auf dem baum",
]
LENGTH = 40
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24, "dropout": 0.1}
MODELS: dict[str, dict[str, Any]] = {
    "T5": {"use_gated_activation": False},
    "T5 1.1": {
        "activation": "silu",
        "key_value_dim": 6,
        "tie_embedding_weights": False,
        "layer_norm_epsilon": 1e-3,
    },
    "BART": {"max_sequence_length": 40},
}


def t5_tokenizer() -> Any:
    import keras_hub

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=33,
        model_type="unigram",
        bos_id=-1,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        pad_piece="<pad>",
        eos_piece="</s>",
        unk_piece="<unk>",
        minloglevel=2,
    )
    return keras_hub.models.T5Tokenizer(proto=model.getvalue())


def bart_tokenizer() -> Any:
    import keras_hub

    merges = ["Ġ t", "h e", "Ġt he", "a t", "Ġ s", "Ġs at", "o g", "Ġ a", "n d", "Ġa nd", "c at"]
    letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ã", "¼"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(x.replace(" ", "") for x in merges)]
    vocabulary = {token: i for i, token in enumerate([*dict.fromkeys(tokens), "<mask>"])}
    return keras_hub.models.BartTokenizer(vocabulary=vocabulary, merges=merges)


@pytest.fixture(scope="module", params=MODELS)
def preset(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    """Return a model of KerasHub whose likely tokens differ clearly, and the opened preset that holds it."""
    import keras_hub

    prefix = request.param.split()[0]
    prefix = {"BART": "Bart"}.get(prefix, prefix)
    tokenizer = bart_tokenizer() if prefix == "Bart" else t5_tokenizer()
    models = keras_hub.models
    if not hasattr(models, f"{prefix}Seq2SeqLM"):
        pytest.skip(f"this KerasHub has no {prefix}Seq2SeqLM")
    keras.utils.set_random_seed(2)
    more = 7 if prefix == "T5" else 0  # its tables are larger than its vocabulary
    backbone = getattr(models, f"{prefix}Backbone")(
        tokenizer.vocabulary_size() + more, **SIZES, **MODELS[request.param]
    )
    rng = np.random.default_rng(4)
    for weight in backbone.weights:
        weight.assign(keras.ops.convert_to_numpy(weight) + 0.2 * rng.normal(size=weight.shape))
    preprocessor = getattr(models, f"{prefix}Seq2SeqLMPreprocessor")(tokenizer, LENGTH, LENGTH)
    model = getattr(models, f"{prefix}Seq2SeqLM")(backbone, preprocessor)
    folder = tmp_path_factory.mktemp(prefix)
    model.save_to_preset(str(folder))
    return model, open_origin(f"hub:{folder}")


def to_library(origin: Any, ids: np.ndarray) -> np.ndarray:
    """Return the preset's ids of heed's."""
    tokenizer = origin._tokenizer
    numbers = [tokenizer.library_id(i) for i in range(tokenizer.vocabulary_size)]
    numbers[1] = origin._start
    return np.array([0 if number is None else number for number in numbers])[ids]


def test_logits_and_tokens_are_those_of_the_preset(preset: Any) -> None:
    model, origin = preset
    ours = origin.make_model()
    size = ours.config.target_vocabulary_size
    rng = np.random.default_rng(0)
    source, target = rng.integers(4, size, (2, 3, 9))
    source[1, 5:] = 0
    target[:, 0] = 1
    theirs = model(
        {
            "encoder_token_ids": to_library(origin, source),
            "encoder_padding_mask": (source != 0).astype("int32"),
            "decoder_token_ids": to_library(origin, target),
            "decoder_padding_mask": np.ones_like(target),
        }
    )
    ids = [i for i in range(size) if i != 1 and origin._tokenizer.library_id(i) is not None]
    wanted = np.asarray(theirs)[..., to_library(origin, np.array(ids))]
    found = np.asarray(ours({"source": source, "target": target}))[..., ids]
    scale = np.abs(wanted).max()
    assert scale > 1
    # A few hundred sums of 24 products in float32, one after the other.
    np.testing.assert_allclose(found, wanted, atol=scale * 1e-5)


def test_texts_are_those_of_the_preset(preset: Any) -> None:
    model, origin = preset
    ours, tokenizer = origin.make_model(), origin._tokenizer
    assert explain_generate(ours).implementation == "engine"
    model.compile(sampler="greedy", jit_compile=False)
    batch = pad_rows(tokenizer.encode(LINES), LENGTH)
    theirs = model.preprocessor.generate_preprocess(LINES)
    known = np.asarray(theirs["encoder_padding_mask"])
    np.testing.assert_array_equal(known, batch != 0)
    read = np.asarray(theirs["encoder_token_ids"])
    np.testing.assert_array_equal(to_library(origin, batch)[known], read[known])
    prompt = None
    if ours.config.scale_embeddings is False:  # BART is made to write "<s>" first
        prompt = np.full((len(LINES), 1), tokenizer.encode([""])[0][0])
    written = generate(ours, batch, prompt=prompt, max_length=LENGTH - 1)
    for text, other in zip(
        tokenizer.decode(np.asarray(written)), model.generate(LINES), strict=True
    ):
        assert text.split() == other.replace("⁇", " ⁇ ").split()


def test_a_run_starts_from_a_preset_and_trains_on(preset: Any, tmp_path: Path) -> None:
    _, origin = preset
    source, target = tiny.write_parallel_text(tmp_path)
    chosen = {"source": source, "target": target, "longest": 18}
    task = TextTask.create(**chosen, **origin.same_vocabulary(TextTask, chosen))
    assert task.shares_vocabulary
    options = {name: tiny.TINY[name] for name in ("batch_size", "steps", "validate_every")}
    run = start_run(tmp_path / "run", task, init_from=origin, **options, checkpoint_every=6)
    assert run.config["model"] == origin.values
    model = origin.make_model()
    train(run, progress=False)
    translator = Translator(run)
    assert translator.task.decode(translator.decode([translator.task.encode("aa bb")]))
    assert any(
        not np.array_equal(mine, first.numpy())
        for mine, first in zip(tiny.weights(run), model.weights, strict=True)
    )
    said = (run.path / "train.log").read_text()
    assert "started from the weights of hub:" in said
    assert "all of them" in said


def test_presets_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    import keras_hub

    with pytest.raises(TaskError, match=r"hub:.*neither a folder"):
        open_origin(f"hub:{tmp_path / 'nothing'}")
    with pytest.raises(TaskError, match="`hub:` must be followed by"):
        open_origin("hub:")
    folder = tmp_path / "gpt2"
    folder.mkdir()
    backbone = keras_hub.models.GPT2Backbone(50, 1, 2, 8, 16, max_sequence_length=9)
    backbone.save_to_preset(str(folder))
    with pytest.raises(TaskError, match="Received: GPT2Backbone"):
        open_origin(f"hub:{folder}")
    alone = tmp_path / "t5"
    alone.mkdir()
    keras_hub.models.T5Backbone(50, **SIZES).save_to_preset(str(alone))
    with pytest.raises(TaskError, match=r"tokenizer of hub:.* cannot be opened"):
        open_origin(f"hub:{alone}")


def test_other_tasks_are_refused(preset: Any) -> None:
    with pytest.raises(TaskError, match="own text, not for numbers"):
        preset[1].same_vocabulary(NumbersTask)
    assert preset[1].same_vocabulary(TextTask, ["vocabulary_size"]) == {}
