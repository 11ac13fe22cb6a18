"""The training loop: stopped anywhere and resumed, it ends with the same bits."""

import contextlib
import io
import random
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

from heed.seq2seq import TaskError, train
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.runs.trained_model import load_model, make_model
from heed.seq2seq.training import training as training_module
from heed.seq2seq.training._log import read_metrics
from heed.seq2seq.training._step import TrainingStep, Validation
from tests import damage
from tests.seq2seq import tiny
from tests.slow import slow


class CrashError(Exception):
    """Stands for a crash."""


def stop_at(monkeypatch, step, error):
    """Make training fail just before it takes the step after `step`."""
    take = training_module._Training._take

    def failing(self, batch, log):
        if self._at.step == step:
            raise error
        take(self, batch, log)

    monkeypatch.setattr(training_module._Training, "_take", failing)


def metrics(run):
    return [{k: v for k, v in r.items() if k != "seconds"}
            for r in read_metrics(run.path / "metrics.jsonl")]  # fmt: skip


def log_of(run):
    return (run.path / "train.log").read_text()


def test_the_first_weights_are_those_of_the_seed(tmp_path):
    """With the batches, below, all that a run draws: that two of one seed are the same, each resumed one shows."""
    run, other = (tiny.start(tmp_path / str(seed), seed=seed) for seed in (5, 6))
    first, again, others = (
        [weight.numpy() for weight in make_model(one).weights] for one in (run, run, other)
    )
    assert tiny.same(first, again)
    assert not tiny.same(first, others)


def test_the_batches_are_those_of_the_seed(tmp_path):
    """The first weights depend on the seed too, and would hide that the batches do not."""
    task = tiny.start(tmp_path / "run").task()
    for seed in (5, 6):
        options = TrainingOptions(steps=4, batch_size=32, seed=seed)
        taken = list(training_module._prefetch(task, options, 1))
        assert len(taken) == 3
        for step, (batch,) in enumerate(taken, 1):
            assert (batch.source == task.training_batch(seed, step, 32).source).all()
            assert (batch.source != task.training_batch(11 - seed, step, 32).source).any()


def test_the_first_line_says_what_is_trained(tmp_path, monkeypatch, capsys):
    """Before the first step; without a terminal, nothing else is printed until the first validation."""
    run = tiny.start(tmp_path / "run", languages=("en", "de"))
    weights = make_model(run).count_params()
    stop_at(monkeypatch, 0, CrashError())
    with pytest.raises(CrashError):
        train(run)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for part in (
        "numbers 0 to 999,999 in en, de",
        "one in twenty held out",
        f"vocabularies of 16 and {run.task().target_vocabulary_size} tokens",
        f"{weights:,} parameters",
        "12 steps of 4 pairs",
        str(run.path),
    ):
        assert part in said
    assert said in log_of(run)
    with pytest.raises(CrashError):
        train(run, progress=False)
    assert capsys.readouterr().err == ""


def unwritten(finished_run, folder):
    """Return a copy of a finished run, as a kill leaves it before the final weights are written."""
    run = RunFolder.open(shutil.copytree(finished_run.path, folder))
    run.weights.unlink()
    return run


@pytest.fixture(scope="module")
def resumed(finished_run, tmp_path_factory):
    """Return a run whose newest checkpoint was damaged, so that it took its last steps again; and what it said."""
    run = unwritten(finished_run, tmp_path_factory.mktemp("resumed") / "run")
    older, newest = checkpoint.list_steps(run.checkpoints)
    data = newest.read_bytes()
    place = data.index(b"PK\x01\x02")  # of the zip's directory: needs a zip of version 64.0
    newest.write_bytes(data[: place + 6] + b"\xff" + data[place + 7 :])
    with pytest.warns(UserWarning, match=rf"{newest} is damaged: .*; {older.name} takes its place"):
        assert load_model(run)[1] == {"step": 9}
    with contextlib.redirect_stderr(io.StringIO()) as said:
        train(run, progress=True)
    return run, said.getvalue()


def test_a_resumed_run_ends_with_the_same_weights(finished_run, resumed):
    assert tiny.same(tiny.weights(resumed[0]), tiny.weights(finished_run))
    assert metrics(resumed[0]) == metrics(finished_run), "each step is there once"


def test_a_damaged_checkpoint_is_passed_over_aloud(resumed):
    run, said = resumed
    name = run.checkpoints / "step-00000012.npz"
    line = f"{name} is damaged: zip file version 25.5; step-00000009.npz takes its place"
    assert line in said
    assert line in log_of(run)


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(8,), (2, 8), (2, 6, 8, 11), (7,)])
def test_a_run_stopped_before_its_first_checkpoint_at_one_and_before_its_last_step(
    tmp_path, finished_run, stops
):
    run = tiny.start(tmp_path / "run", languages=("en", "de"))
    for stop in stops:
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, stop, CrashError())
            with pytest.raises(CrashError):
                train(RunFolder.open(run.path), progress=False)
        assert not run.weights.exists()
    assert train(RunFolder.open(run.path), progress=False).steps == tiny.TINY["steps"]
    assert tiny.same(tiny.weights(run), tiny.weights(finished_run))
    assert metrics(run) == metrics(finished_run)


def test_a_run_killed_before_its_weights_were_written(tmp_path, finished_run):
    run = unwritten(finished_run, tmp_path / "run")
    (run.path / "model.keras").unlink()
    train(run, progress=False)
    assert tiny.same(tiny.weights(run), tiny.weights(finished_run))
    assert (run.path / "model.keras").exists()


def test_a_complete_run_is_left_as_it_is(finished_run):
    before = {p: p.stat().st_mtime_ns for p in finished_run.path.rglob("*") if p.name != ".lock"}
    assert train(finished_run, progress=False).steps == tiny.TINY["steps"]
    after = {p: p.stat().st_mtime_ns for p in finished_run.path.rglob("*") if p.name != ".lock"}
    assert before == after


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch, no_steps):
    run = tiny.start(tmp_path / "run", checkpoint_every=1)
    savez, calls = np.savez, []

    def full(file, **arrays):
        calls.append(1)
        if len(calls) == 2:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        savez(file, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        with pytest.raises(OSError, match=r"No space left .*step 2 .*step 1"):
            train(run, progress=False)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000001.npz"]
    assert checkpoint.load_latest(run.checkpoints, pytest.fail)[1]["step"] == 1


def test_early_stopping_keeps_the_best_weights_and_survives_a_stop(tmp_path, monkeypatch, eager):
    losses, now = {1: 3.0, 2: 1.0, 3: 2.0, 4: 1.5, 5: 0.0}, {}
    validated = training_module._Training._validate

    def noted(self, log, loss):
        now["step"] = self._at.step
        now.setdefault(self._at.step, [w.numpy() for w in self._model.weights])
        return validated(self, log, loss)

    monkeypatch.setattr(training_module._Training, "_validate", noted)
    monkeypatch.setattr(
        TrainingStep, "validate", lambda *_: Validation(losses[now["step"]], 0.5, 0.5)
    )
    options = {"steps": 9, "patience": 2, "validate_every": 1, "checkpoint_every": 2}
    straight = tiny.start(tmp_path / "straight", **options)
    trained = train(straight, progress=False)
    assert (trained.stopped_early, trained.steps, trained.best_step) == (True, 4, 2)
    assert tiny.same(tiny.weights(straight), now[2])
    assert checkpoint.load(straight.weights)[1]["step"] == 2

    stopped = tiny.start(tmp_path / "stopped", **options)
    with monkeypatch.context() as patch:
        stop_at(patch, 3, CrashError())
        with pytest.raises(CrashError):
            train(stopped, progress=False)
    assert train(stopped, progress=False).steps == 4
    assert tiny.same(tiny.weights(stopped), tiny.weights(straight))
    assert metrics(stopped) == metrics(straight)
    assert train(stopped, progress=False).steps == 4, "it stays stopped"


def test_what_a_run_folder_holds(finished_run):
    names = {path.name for path in finished_run.path.iterdir()}
    assert names >= {"config.json", "target.model", "weights.npz", "metrics.jsonl", "train.log",
                     "tensorboard", "checkpoints"}  # fmt: skip
    records = metrics(finished_run)
    assert [r["step"] for r in records] == [4, 8, 10, 12]
    assert {"loss", "learning_rate", "validation_loss", "validation_exact"} <= set(records[0])
    assert "step 8/12" in (finished_run.path / "train.log").read_text()


def test_tensorboard_shows_each_step_once_after_a_resume(resumed):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    steps = [
        event.step
        for path in sorted((resumed[0].path / "tensorboard").iterdir())
        for event in loader.EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag == "training/loss"
    ]
    assert steps == [4, 8, 10, 12]


def test_metrics_cut_short_by_a_kill_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]
    assert read_metrics(path, 1) == [{"step": 1}]
    path.write_bytes(b'{"step": 1}\n\0\0\0')  # after a power cut
    assert read_metrics(path) == [{"step": 1}]
    path.write_text('{"step": 1, "loss": 1e+30}\n')  # what a training may write
    assert read_metrics(path) == [{"step": 1, "loss": 1e30}]


@pytest.mark.parametrize(
    "line",
    [b"", b"[1]", b'{"foo": 1}', b"7", b"null", b'{"step": "1"}', b'{"step": 1, "loss": "x"}',
     b'{"step": 1, "loss": null}', b"\xff", b"{", b"[" * 100_000,
     b'{"step": 1, "loss": 1' + b"0" * 400 + b"}", b'{"step": 1, "loss": NaN}'],
    ids=range(13),
)  # fmt: skip
def test_a_line_of_metrics_that_is_no_record(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(TaskError, match=r"metrics.jsonl is damaged: line 2"):
        read_metrics(path)


@pytest.mark.parametrize("kind", [damage.flipped, damage.cut])
def test_any_damage_to_the_metrics_is_one_error_or_other_numbers(tmp_path, kind):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10, "loss": 2.5e-1}\n{"step": 20, "loss": 3}\n')
    refused = tried = 0
    for _, data in kind(path.read_bytes()):
        path.write_bytes(data)
        tried += 1
        try:
            records = read_metrics(path)
        except TaskError:
            refused += 1
        else:
            assert len(records) <= 2
            assert all(isinstance(record["step"], int) for record in records)
    assert kind is damage.cut or refused > 0.5 * tried


@pytest.mark.parametrize("how", ["cut", *slow(["other", "nan"])])
def test_damaged_weights_are_written_again(tmp_path, finished_run, capsys, how):
    run = RunFolder.open(shutil.copytree(finished_run.path, tmp_path / "run"))
    if how == "cut":
        run.weights.write_bytes(run.weights.read_bytes()[:-7])
    elif how == "nan":
        arrays, meta = checkpoint.load(run.weights)
        checkpoint.save(run.weights, {"weight": map(WRONG["nan"], arrays["weight"])}, meta)
    else:
        checkpoint.save(run.weights, {"weight": [np.zeros(3)]}, {"step": 12})
    problem = "is damaged" if how != "nan" else "its weights are not finite"
    with pytest.raises(TaskError, match=problem):
        load_model(run)
    assert train(run, progress=True).steps == 12
    assert tiny.same(tiny.weights(run), tiny.weights(finished_run))
    for text in (capsys.readouterr().err, log_of(run)):
        assert problem in text
        assert "weights.npz is written again from the checkpoint of step 12" in text


def test_a_run_leaves_the_random_generators_alone(tmp_path, finished_run, eager):
    """Those of Python, NumPy, Keras and TensorFlow, which belong to the program around it."""

    def seed():
        keras.utils.set_random_seed(7)

    def drawn():
        return [
            keras.utils.get_random_seed() if hasattr(keras.utils, "get_random_seed") else None,
            random.random(),
            np.random.random(),  # noqa: NPY002 (the global generator is the one in question)
            float(keras.random.uniform(())),
            float(tf.random.uniform(())),
            keras.layers.Dense(2).kernel_initializer.seed,
        ]

    def loads():
        assert load_model(finished_run)[1] == {"step": 12}

    def trains():
        train(tiny.start(tmp_path / "run", steps=2), progress=False)

    seed()
    expected = drawn()
    for act in (loads, trains):
        seed()
        act()
        assert drawn() == expected, act.__name__


@pytest.mark.parametrize("was", [False, True])
def test_tensorflow_is_deterministic_while_a_run_trains_and_then_as_it_was(
    tmp_path, monkeypatch, was, no_steps
):
    """Left on, it would keep Keras from compiling the caller's own models with XLA."""
    (config.enable_op_determinism if was else config.disable_op_determinism)()
    take, seen = training_module._Training._take, []

    def taken(self, batch, log):
        seen.append(config.is_op_determinism_enabled())
        if self._at.step == 1:
            raise CrashError
        take(self, batch, log)

    monkeypatch.setattr(training_module._Training, "_take", taken)
    try:
        with pytest.raises(CrashError):
            train(tiny.start(tmp_path / "run"), progress=False)
        assert seen == [True, True]
        assert config.is_op_determinism_enabled() == was
    finally:
        config.disable_op_determinism()


def test_memory_that_runs_out_is_called_so(tmp_path, monkeypatch, no_steps):
    run = tiny.start(tmp_path / "run", checkpoint_every=2)
    exhausted = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
    for step, error in ((1, MemoryError()), (3, exhausted)):
        saved = step // 2 * 2
        with monkeypatch.context() as patch:
            stop_at(patch, step, error)
            with pytest.raises(
                MemoryError, match=rf"enough memory .*--batch-size.* {step} of 12; .* step {saved}"
            ):
                train(run, progress=False)


def test_events_that_cannot_be_written_are_an_error_of_the_disk(tmp_path, monkeypatch, no_steps):
    pytest.importorskip("tensorboard")

    def full(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    run = tiny.start(tmp_path / "run", validate_every=1)
    monkeypatch.setattr(tf.summary, "scalar", full)
    with pytest.raises(OSError, match=r"No space left .*step 1 of 12"):
        train(run, progress=False)


def test_a_damaged_checkpoint_and_a_wrong_config_are_reported(tmp_path, finished_run):
    run = tiny.start(tmp_path / "run")
    (run.checkpoints / "step-00000004.npz").write_bytes(b"")
    with pytest.raises(TaskError, match=r"step-00000004\.npz is damaged"):
        train(run, progress=False)
    other = {**finished_run.config, "model": {**finished_run.config["model"], "width": 32}}
    with pytest.raises(TaskError, match="not those of its model"):
        load_model(RunFolder(finished_run.path, other))
    with pytest.raises(TaskError, match="damaged: its model cannot be made"):
        train(RunFolder(run.path, {**run.config, "model": {"wings": 2}}), progress=False)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    run = tiny.start(tmp_path / "run")
    monkeypatch.setattr(TrainingStep, "__call__", lambda *_, **__: float("nan"))
    with pytest.raises(TaskError, match=r"became nan at step 1: .*--learning-rate"):
        train(run, progress=False)


@pytest.mark.parametrize(
    ("every", "message"),
    [
        ({"validate_every": 12, "checkpoint_every": 1}, "a weight is NaN or infinite at step 1"),
        *slow([({"validate_every": 1}, "the validation loss became nan at step 1")]),
    ],
    ids=["checkpoint", "validation"],
)
def test_a_training_that_diverges_leaves_no_record_and_no_checkpoint(
    tmp_path, eager, every, message
):
    """`--resume` called the record damaged, and continued from the checkpoint."""
    run = tiny.start(tmp_path / "run", learning_rate=1e39, warmup_steps=0, **every)
    for _ in range(2):  # then resumed
        with pytest.raises(
            TaskError, match=rf"{message}: start again with a lower --learning-rate"
        ):
            train(RunFolder.open(run.path), progress=False)
        assert read_metrics(run.path / "metrics.jsonl") == []
        assert list(run.checkpoints.iterdir()) == []


WRONG = {
    "nan": lambda value: np.where(value == value.flat[0], np.nan, value).astype(np.float32),
    "inf": lambda value: value + np.float32(np.inf),
    "float64": lambda value: value.astype(np.float64),
    "float16": lambda value: value.astype(np.float16),
    "int32": lambda value: value.astype(np.int32),
    "complex64": lambda value: value.astype(np.complex64),
    "big endian": lambda value: value.astype(">f4"),
}


@pytest.mark.parametrize(
    "how", ["nan", *slow(["float64", "inf", "float16", "int32", "complex64", "big endian"])]
)
def test_weights_that_are_not_finite_or_of_another_dtype_are_refused(tmp_path, finished_run, how):
    """In final weights, which a checkpoint may replace, and in a checkpoint."""
    run = RunFolder.open(shutil.copytree(finished_run.path, tmp_path / "run"))
    message = "is damaged: its weights must be float32" if how not in ("nan", "inf") else (
        "cannot be used: its weights are not finite, as after a training that diverged"
    )  # fmt: skip
    for path in (run.weights, *checkpoint.list_steps(run.checkpoints)):
        arrays, meta = checkpoint.load(path)
        arrays["weight"][3] = WRONG[how](arrays["weight"][3])
        checkpoint.save(path, arrays, meta)
        if path == run.weights:
            with pytest.raises(TaskError, match=message):
                load_model(run)
    with pytest.raises(TaskError, match=message):
        train(run, progress=False)
    run.weights.unlink()
    with pytest.raises(TaskError, match=message):
        load_model(run)


KILLED = """
import sys
from heed.seq2seq import RunFolder, train
train(RunFolder.open(sys.argv[1]), progress=True)
"""


def killed_at(run, record, wait=0.0):
    """Train in another process and kill it once metrics.jsonl holds so many records."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(run.path)], stderr=subprocess.DEVNULL
    ) as process:
        path, end = run.path / "metrics.jsonl", time.monotonic() + 120
        while len(read_metrics(path)) < record and process.poll() is None:
            if time.monotonic() > end:
                process.kill()
                raise TimeoutError(f"no record {record}")
            time.sleep(0.002)
        time.sleep(wait)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)


@pytest.mark.slow
def test_kill_9_at_any_moment(tmp_path):
    """Kills a process at many moments; the weights are those of an undisturbed run."""
    options = {"steps": 200, "checkpoint_every": 7, "validate_every": 50}
    straight = tiny.start(tmp_path / "straight", **options)
    killed_at(straight, 1000)  # never: it ends by itself
    expected = tiny.weights(straight)
    for number, record in enumerate((1, 3, 6, 11, 16, 19)):
        run = tiny.start(tmp_path / f"run{number}", **options)
        killed_at(run, record, wait=0.003 * number)
        killed_at(run, record + 2)  # and once more in the second sitting
        killed_at(run, 1000)
        assert tiny.same(tiny.weights(run), expected), f"killed at record {record}"
        assert metrics(run) == metrics(straight)
