"""Kinds of models and their sizes, and runs of each."""

import dataclasses

import keras
import numpy as np
import pytest

from heed.errors import TaskError
from heed.models import RecurrentTranslatorConfig
from heed.seq2seq import DecodingOptions, Translator, read_attention, start_run
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.runs._architectures import ARCHITECTURES, PRESETS, model_values
from heed.seq2seq.runs.trained_model import make_model
from tests.seq2seq import tiny
from tests.slow import slow

RECURRENT = {"architecture": "recurrent", "width": 16, "encoder_layers": 1, "decoder_layers": 1}
_TRAINING = {key: tiny.TINY[key] for key in ("batch_size", "warmup_steps", "steps", "validate_every",
                                             "checkpoint_every", "dropout", "seed")}  # fmt: skip


def recurrent(path, **options):
    return start_run(path, tiny.numbers("en"), **{**_TRAINING, **RECURRENT, **options})


# Millions of parameters with two vocabularies of 8,000 tokens, as docs/command-line.md states them.
@pytest.mark.parametrize(
    ("architecture", "preset", "millions"),
    [
        ("transformer", "mini", 1.8),
        ("transformer", "tiny", 3.0),
        ("recurrent", "tiny", 2.5),
        *slow(
            [("recurrent", "mini", 1.8), ("transformer", "base", 52.3), ("recurrent", "base", 21.8)]
        ),
    ],
)
def test_presets_are_as_large_as_the_documentation_says(architecture, preset, millions):
    kind = ARCHITECTURES[architecture]
    config = kind.config.from_dict(
        {"source_vocabulary_size": 8_000, "target_vocabulary_size": 8_000}
        | model_values(architecture, preset, {}, {})
    )
    model = kind.model(config)
    model.build()
    assert model.count_params() / 1e6 == pytest.approx(millions, abs=0.05)


def test_each_architecture_has_all_presets():
    for kind in ARCHITECTURES.values():
        assert tuple(kind.presets) == PRESETS
        for values in kind.presets.values():
            kind.config(10, 12, **values)  # which checks them


def test_what_is_chosen_comes_before_the_preset_and_that_before_the_recipe(tmp_path):
    def model(**options):
        task = tiny.numbers("en")
        run = start_run(tmp_path / str(len(list(tmp_path.iterdir()))), task, steps=7, **options)
        assert run.options.steps == 7
        return run.config["model"]

    assert model()["width"] == 128
    assert model(preset="base")["width"] == 512
    assert model(preset="base", width=64)["width"] == 64
    assert model(preset="base", width=64)["feed_forward_width"] == 2048
    found = model(architecture="recurrent", cell="gru")
    assert found["cell"] == "gru"
    assert set(found) == {field.name for field in dataclasses.fields(RecurrentTranslatorConfig)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "rnn"}, "`architecture` must be one of 'transformer', 'recurrent'"),
        ({"preset": "huge"}, "`preset` must be one of 'mini', 'tiny', 'base', 'big'. Received"),
        ({"cell": "gru"}, "`cell` is for the recurrent architecture, and this is transformer"),
        ({"architecture": "recurrent", "gated": True}, "`gated` is for the transformer archi"),
        ({"widht": 8}, "`widht` is no option of a run: did you mean `width`?"),
        ({"pad_id": 8}, "`pad_id` is no option of a run"),
    ],
)
def test_options_that_do_not_fit(tmp_path, options, message):
    with pytest.raises(TaskError, match=message.replace("?", r"\?")):
        start_run(tmp_path / "run", tiny.numbers("en"), **options)
    assert list(tmp_path.iterdir()) == []


def untrained(path, **options):
    """Return a recurrent run whose final weights are its first ones."""
    run = recurrent(path, **options)
    checkpoint.save(run.weights, {"weight": make_model(run).weights}, {"step": 0})
    return run


@pytest.mark.parametrize("attention", ["additive", *slow(["general"])])
def test_a_recurrent_run_trains_translates_and_shows_its_attention(
    tmp_path, attention, recurrent_run
):
    trained = attention == "additive"
    translator = Translator(
        recurrent_run if trained else untrained(tmp_path / "run", attention=attention)
    )
    found = read_attention(translator, "1234")
    assert found.translation == translator(["1234"])[0]
    (weights,) = found.capture.weights.values()
    assert found.capture.names == ("cross 1",)
    assert weights.shape == (1, 1, len(found.target), 5)
    np.testing.assert_allclose(np.asarray(weights).sum(-1), 1, atol=1e-5)
    assert found.write_page(tmp_path / "a.html").stat().st_size > 1000


@pytest.mark.slow
def test_a_recurrent_run_translates_by_beams_and_draws_in_float32_alone(recurrent_run):
    run = recurrent_run
    one = Translator(run)(["12", "345"])
    assert Translator(run, options=DecodingOptions(beam_size=1))(["12", "345"]) == one
    for options in ({"beam_size": 3}, {"temperature": 1.0, "seed": 2}):
        assert len(Translator(run, options=DecodingOptions(**options))(["12", "345"])) == 2
    with pytest.raises(TaskError, match=r"`weights` must be 'float32' for .*RecurrentTranslator"):
        Translator(run, options=DecodingOptions(weights="int8"))


def test_a_recurrent_run_without_attention_says_that_there_is_none(tmp_path):
    run = untrained(tmp_path / "run", attention="none")
    with pytest.raises(TaskError, match="run has no attention to show"):
        read_attention(Translator(run), "1234")


def test_a_run_holds_a_model_for_keras(finished_run, recurrent_run):
    for run in (finished_run, recurrent_run):
        model = keras.models.load_model(run.path / "model.keras")
        weights = [weight.numpy() for weight in model.weights]
        assert tiny.same(weights, tiny.weights(run))
