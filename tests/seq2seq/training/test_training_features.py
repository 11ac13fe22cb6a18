"""Accumulation, averages, scores of translations, training on and fine-tuning: exact after a stop, all of them."""

import shutil

import keras
import numpy as np
import pytest

from heed.seq2seq import (
    RunFolder,
    TaskError,
    TextTask,
    Translator,
    average,
    extend_run,
    start_run,
    train,
)
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.runs.trained_model import load_model, make_model
from heed.seq2seq.training._log import read_metrics
from heed.seq2seq.training._step import TrainingStep, Validation
from heed.seq2seq.training._validation_score import ValidationScore
from tests.seq2seq import tiny
from tests.seq2seq.conftest import eagerly
from tests.seq2seq.training.test_training import CrashError, metrics, stop_at
from tests.slow import slow


@pytest.mark.slow
def test_bfloat16_computes_in_less_and_keeps_weights_in_float32(tmp_path, finished_run):
    # A whole run: its losses are those of float32, nearly.
    run = tiny.start(tmp_path / "run", languages=("en", "de"), precision="bfloat16")
    model = make_model(run, "bfloat16")
    assert model.encoder.blocks[0].compute_dtype == "bfloat16"
    assert {weight.dtype for weight in model.weights} == {"float32"}
    train(run, progress=False)
    arrays, _ = checkpoint.load_latest(run.checkpoints, pytest.fail)
    for name in ("weight", "first", "second"):
        assert {array.dtype for array in arrays[name]} == {np.dtype("float32")}
    assert not tiny.same(tiny.weights(run), tiny.weights(finished_run))
    losses = [metrics(one)[-1]["validation_loss"] for one in (run, finished_run)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert load_model(run)[0].compute_dtype == "float32"


@pytest.fixture(scope="module")
def averaging(tmp_path_factory):
    """Return a run with a moving average, and the weights that its validation saw."""
    seen, validate = [], TrainingStep.validate

    def noted(self, batches):
        seen[:] = [weight.numpy() for weight in self.model.weights]
        return validate(self, batches)

    options = {"steps": 4, "keep": 4, "checkpoint_every": 1, "validate_every": 4}
    run = tiny.start(tmp_path_factory.mktemp("averaging") / "run", ema=0.8, **options)
    with pytest.MonkeyPatch.context() as patch, eagerly():
        patch.setattr(TrainingStep, "validate", noted)
        train(run, progress=False)
    return run, seen


def test_the_moving_average_is_what_is_validated_and_kept(averaging):
    run, seen = averaging
    arrays, _ = checkpoint.load_latest(run.checkpoints, pytest.fail)
    assert tiny.same(tiny.weights(run), arrays["average"])
    assert tiny.same(seen, arrays["average"])
    assert not tiny.same(arrays["weight"], arrays["average"])


# Scores of translations


@pytest.mark.parametrize(("metric", "count"), [("bleu", 7), *slow([("chrf", 10_000)])])
def test_the_score_is_that_of_the_translations(tmp_path, finished_run, metric, count):
    sacrebleu = pytest.importorskip("sacrebleu")
    options = {"validate_with": metric, "validate_sentences": count}
    run = tiny.start(tmp_path / "run", languages=("en", "de"), **options)
    task = run.task()
    pairs = task.validation_texts()
    count = min(count, len(pairs))
    chosen = [pairs[i * len(pairs) // count] for i in range(count)]
    # What a person would get: the same model, asked for the same sentences.
    said = task.decode(Translator(finished_run).decode([ids for ids, _ in chosen]))
    expected = getattr(sacrebleu, f"corpus_{metric}")(said, [[text for _, text in chosen]]).score
    assert ValidationScore(run, task)(tiny.weights(finished_run)) == pytest.approx(expected)


def test_the_texts_to_be_scored_by_are_those_of_the_files(tmp_path):
    task = TextTask.create(*tiny.write_parallel_text(tmp_path, 100), 60)
    targets = (tmp_path / "target.txt").read_text().splitlines()
    texts = task.validation_texts()
    assert {text for _, text in texts} <= set(targets)
    batches = task.validation_batches()
    assert sorted(task.decode(row for b in batches for row in b.target)) == sorted(
        t for _, t in texts
    )
    numbers = tiny.numbers("en")
    ids, text = numbers.validation_texts()[0]
    number = int("".join(reversed(numbers.source_labels(ids)[1:])))
    assert text == numbers.decode([numbers.subwords.encode([text])[0]])[0]
    assert numbers.encode(str(number)) == ids


def test_early_stopping_by_a_score_keeps_the_highest(tmp_path, monkeypatch, no_steps):
    scores = iter([1.0, 5.0, 4.0, 5.0, 9.0])
    monkeypatch.setattr(ValidationScore, "__call__", lambda *_: next(scores))
    run = tiny.start(tmp_path / "run", steps=9, validate_every=1, patience=2, validate_with="bleu")
    trained = train(run, progress=False)
    assert (trained.stopped_early, trained.steps, trained.best_step) == (True, 4, 2)
    records = read_metrics(run.path / "metrics.jsonl")
    assert [r["validation_bleu"] for r in records if "validation_bleu" in r] == [1, 5, 4, 5]
    assert "BLEU 5.0" in (run.path / "train.log").read_text()


def test_the_loss_decides_between_equal_scores(tmp_path, monkeypatch, no_steps):
    """A score that stays at 0 for a while keeps no first weights, and stops nothing while the loss falls."""
    losses = iter([4.0, 3.0, 3.5, 3.0, 2.0, 2.5])
    monkeypatch.setattr(TrainingStep, "validate", lambda *_: Validation(next(losses), 0.5, 0.5))
    monkeypatch.setattr(ValidationScore, "__call__", lambda *_: 0.0)
    run = tiny.start(tmp_path / "run", steps=6, validate_every=1, patience=3, validate_with="bleu")
    trained = train(run, progress=False)
    assert (trained.stopped_early, trained.steps, trained.best_step) == (False, 6, 5)


def test_chrf_takes_the_place_of_bleu_for_short_targets(tmp_path, eager):
    source, target = tiny.write_parallel_text(tmp_path)
    target.write_text("".join(f"{line[:2]}\n" for line in target.read_text("utf-8").splitlines()))
    options = {**tiny.TINY, "steps": 1, "validate_every": 1, "validate_with": "bleu"}
    run = start_run(tmp_path / "run", TextTask.create(source, target, 60), **options)
    assert run.options.bleu_tokenizer == "13a", "chosen once for the run"
    train(run, progress=False)
    log = (run.path / "train.log").read_text("utf-8")
    assert "BLEU has no meaning for texts this short: 0 of " in log
    assert "Validation uses chrF" in log
    assert "validation_chrf" in read_metrics(run.path / "metrics.jsonl")[-1]


# Training on


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant"])
def test_a_run_that_is_trained_on_is_one_that_was_made_so_long(tmp_path, schedule, eager):
    options = {"schedule": schedule, "ema": 0.9, "steps": 4, "warmup_steps": 2, "validate_every": 9}
    long = tiny.start(tmp_path / "long", **{**options, "steps": 7})
    train(long, progress=False)
    short = tiny.start(tmp_path / "short", **options)
    train(short, progress=False)
    run = extend_run(short, 7)
    assert RunFolder.open(run.path).options.steps == 7
    assert train(RunFolder.open(run.path), progress=False).steps == 7
    assert tiny.same(tiny.weights(run), tiny.weights(long))
    assert checkpoint.load(run.weights)[1]["step"] == 7


def test_a_cosine_is_where_it_would_be_in_the_middle_of_a_longer_run(
    tmp_path, monkeypatch, finished_run, no_steps
):
    run = RunFolder.open(shutil.copytree(finished_run.path, tmp_path / "run"))
    run, rates = extend_run(run, 24), []
    monkeypatch.setattr(
        TrainingStep, "__call__", lambda s, b, step, rate, *_, **__: rates.append(rate) or 1.0
    )
    train(run, progress=False)
    assert rates == [run.options.rate(step) for step in range(12, 24)]
    assert rates[0] > 0.5 * run.options.learning_rate
    assert rates[-1] < 0.05 * run.options.learning_rate


def test_training_on_after_an_early_stop_remembers_the_best(tmp_path, monkeypatch, no_steps):
    scores = iter([5.0, 4.0, 3.0, 2.0, 6.0, 1.0, 0.0])
    monkeypatch.setattr(ValidationScore, "__call__", lambda *_: next(scores))
    run = tiny.start(tmp_path / "run", steps=5, validate_every=1, patience=2, validate_with="bleu")
    assert train(run, progress=False).steps == 3
    trained = train(extend_run(run, 10), progress=False)
    assert (trained.steps, trained.best_step, trained.stopped_early) == (7, 5, True)


@pytest.mark.parametrize("steps", [12, 3, 0])
def test_training_on_needs_more_steps(tmp_path, finished_run, steps):
    before = (finished_run.path / "config.json").read_bytes()
    with pytest.raises(TaskError, match="`steps` must be"):
        extend_run(finished_run, steps)
    assert (finished_run.path / "config.json").read_bytes() == before
    assert finished_run.weights.exists()


# Going on from another run


@pytest.mark.slow
def test_the_same_vocabulary_carries_all_weights_over(tmp_path, finished_run, monkeypatch):
    path = tmp_path / "run"
    task = tiny.numbers("en", "de")
    run = start_run(path, task, init_from=finished_run, **_training())
    arrays, meta = checkpoint.load(path / "initial.npz")
    assert tiny.same(arrays["weight"], tiny.weights(finished_run))
    assert meta["note"] == f"started from the weights of {finished_run.path}: all of them"
    assert run.config["model"] == finished_run.config["model"]
    begun = []

    def note(self, *_, **__):
        begun.append([weight.numpy() for weight in self.model.weights])
        return 1.0

    monkeypatch.setattr(TrainingStep, "__call__", note)
    stop_at(monkeypatch, 1, CrashError())
    for _ in range(2):  # stopped before its first checkpoint, it begins with them again
        with pytest.raises(CrashError):
            train(run, progress=False)
    assert len(begun) == 2
    assert all(tiny.same(weights, arrays["weight"]) for weights in begun)
    assert meta["note"] in (path / "train.log").read_text()


@pytest.mark.parametrize("tied", [*slow([True]), False])
def test_a_new_vocabulary_carries_over_what_both_have(tmp_path, tied, finished_run):
    old = finished_run
    if not tied:
        old = tiny.start(tmp_path / "old", languages=("en", "de"), tie_embeddings=False)
        weights = [weight.numpy() + 1 for weight in make_model(old).weights]  # as if trained
        checkpoint.save(old.weights, {"weight": weights}, {"step": 12})
    task = tiny.numbers("de", "fr")
    new = start_run(tmp_path / "new", task, init_from=old, **_training())
    carried = checkpoint.load(new.path / "initial.npz")[0]["weight"]
    first = {w.path.partition("/")[2]: w.numpy() for w in make_model(new).weights}
    found = dict(zip(first, carried, strict=True))
    kept = {w.path.partition("/")[2]: w.numpy() for w in load_model(old)[0].weights}
    before, now = old.task(), new.task()
    pieces = {before.subwords.pieces([i])[0]: i for i in range(4, before.target_vocabulary_size)}
    tables = ["decoder/embedding/tokens/embeddings"]
    tables += [] if tied else ["decoder/output/kernel", "decoder/output/bias"]
    both = 0
    for name in tables:
        side = [x[name].T if "kernel" in name else x[name] for x in (found, kept, first)]
        for i in range(now.target_vocabulary_size):
            place = i if i < 4 else pieces.get(now.subwords.pieces([i])[0])
            expected = side[2][i] if place is None else side[1][place]
            assert (side[0][i] == expected).all()
            both += place is not None
    assert 4 * len(tables) < both < now.target_vocabulary_size * len(tables)
    # German was the second of two languages and is the first now.
    source = "encoder/embedding/tokens/embeddings"
    assert (found[source][14] == kept[source][15]).all()
    assert (found[source][15] == first[source][15]).all()
    rest = [name for name in found if name not in (*tables, source)]
    assert rest
    assert all((found[name] == kept[name]).all() for name in rest)
    said = checkpoint.load(new.path / "initial.npz")[1]["note"]
    assert "11 of 12 source" in said


def test_another_model_than_that_of_the_run_is_refused(tmp_path, finished_run):
    task = tiny.numbers("en", "de")
    for options, name in (
        ({"width": 32}, "width"),
        ({"preset": "tiny"}, "preset"),
        ({"architecture": "recurrent"}, "architecture"),
    ):
        with pytest.raises(TaskError, match=rf"model is that .*: leave out `{name}`"):
            start_run(tmp_path / "run", task, init_from=finished_run, **options)
    given = {"width": 16, "architecture": "transformer", "dropout": 0.5}
    run = start_run(tmp_path / "run", task, init_from=finished_run, **given)
    assert run.config["model"] == {**finished_run.config["model"], "dropout": 0.5}
    unfinished = tiny.start(tmp_path / "unfinished", languages=("en", "de"))
    with pytest.raises(TaskError, match="has no weights yet"):
        start_run(tmp_path / "other", task, init_from=unfinished)
    assert not (tmp_path / "other").exists()


def test_damaged_first_weights_are_refused(tmp_path, finished_run):
    run = start_run(tmp_path / "run", tiny.numbers("en", "de"), init_from=finished_run)
    path = run.path / "initial.npz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TaskError, match=r"initial.npz has been changed"):
        train(run, progress=False)


def _training():
    names = ("batch_size", "warmup_steps", "steps", "validate_every", "checkpoint_every", "seed")
    return {name: tiny.TINY[name] for name in names}


# Averages of checkpoints


def test_the_mean_of_the_last_moving_averages(tmp_path, averaging):
    run = RunFolder.open(shutil.copytree(averaging[0].path, tmp_path / "run"))
    paths = checkpoint.list_steps(run.checkpoints)[-3:]
    arrays = [checkpoint.load(path)[0]["average"] for path in paths]
    assert average(run, 3) == [2, 3, 4]
    for mean, ones in zip(tiny.weights(run), zip(*arrays, strict=True), strict=True):
        np.testing.assert_allclose(mean, sum(np.float64(one) for one in ones) / 3, rtol=1e-6)
        assert mean.dtype == np.float32
    model = keras.models.load_model(run.path / "model.keras")
    assert tiny.same([weight.numpy() for weight in model.weights], tiny.weights(run))
    assert checkpoint.load(run.weights)[1] == {"step": 4, "averaged": [2, 3, 4]}
    assert (
        "the weights are the mean of the checkpoints of the steps 2, 3, 4"
        in (run.path / "train.log").read_text()
    )
    averaged = tiny.weights(run)
    train(run, progress=False)
    assert tiny.same(tiny.weights(run), averaged), "a finished run is left as it is"
    run.weights.unlink()  # a run that is not finished translates with its moving average too
    assert tiny.same([w.numpy() for w in load_model(run)[0].weights], arrays[-1])
    train(run, progress=False)
    assert tiny.same(tiny.weights(run), arrays[-1])


def test_averages_that_cannot_be_had(tmp_path, finished_run):
    with pytest.raises(TaskError, match="2 checkpoints, and `last` asks for 3"):
        average(finished_run, 3)
    with pytest.raises(TaskError, match="`last` must be an integer >= 1"):
        average(finished_run, 0)
    with pytest.raises(TaskError, match=r"not finished: .*heed train --resume"):
        average(tiny.start(tmp_path / "run"), 1)
