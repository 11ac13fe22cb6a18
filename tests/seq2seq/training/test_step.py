"""One step against its formula in NumPy, against Keras, and on several replicas."""

import dataclasses
import hashlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from heed.models import Transformer, TransformerConfig
from heed.ops import softmax_cross_entropy
from heed.seq2seq import TextTask, start_run
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.tasks.task import Batch
from heed.seq2seq.training._step import TrainingStep
from heed.seq2seq.training.training import _prefetch
from tests.seq2seq import tiny

# What a few steps compute is the same compiled or not; the runs of other tests are compiled.
pytestmark = pytest.mark.usefixtures("eager")

CONFIG = TransformerConfig(
    12, 15, width=8, num_heads=2, encoder_layers=1, decoder_layers=1, feed_forward_width=8
)


def made(seed=3, config=CONFIG, **options):
    keras.utils.set_random_seed(seed)
    model = Transformer(config)
    model.build()
    return TrainingStep(model, TrainingOptions(**options), tf.distribute.get_strategy(), True)


def test_each_step_takes_batches_of_its_own():
    class Numbers:
        def take_batch(self, seed, number, size, tokens):
            return (seed, number, size, tokens)

    options = TrainingOptions(steps=4, accumulate=3, batch_size=5, seed=2)
    taken = [*_prefetch(Numbers(), options, 1)]
    assert taken == [[(2, 3 * step + i, 5, 0) for i in range(3)] for step in (1, 2, 3)]


def test_a_training_hashes_each_file_and_makes_each_batch_once(tmp_path, monkeypatch):
    hashed, sha256 = [], hashlib.sha256  # of a file it is called without its bytes
    monkeypatch.setattr(hashlib, "sha256", lambda *data: hashed.append(data) or sha256(*data))
    task = TextTask.create(*tiny.write_parallel_text(tmp_path), 60)
    made, real = [], task.training_batch
    task.training_batch = lambda seed, step, *size: made.append(step) or real(seed, step, *size)
    run = start_run(tmp_path / "run", task, **{**tiny.TINY, "steps": 3})
    run.task().check_batches(run.options)  # as training does before it begins
    batches = [*_prefetch(run.task(), run.options, 0)]
    assert len(batches) == 3
    assert made == [0, 1, 2]
    assert hashed.count(()) == 2


def batch(rows=6, seed=0):
    rng = np.random.default_rng(seed)
    source = rng.integers(4, 12, (rows, 5)).astype(np.int32)
    target = rng.integers(3, 15, (rows, 6)).astype(np.int32)
    for i in range(rows):
        target[i, 3 + i % 4 :] = 0
        target[i, 2 + i % 4] = 2
        source[i, 2 + i % 4 :] = 0
    return Batch(source, target)


def assert_same_weights(first, second, atol=3e-5):
    """Where there is a gradient: Adam blows rounding up to steps where there is none (key biases)."""
    compared = total = 0
    for one, other, squares in zip(
        first.model.weights, second.model.weights, first.second, strict=True
    ):
        felt = np.sqrt(squares.numpy()) > 1e-5
        np.testing.assert_allclose(one.numpy()[felt], other.numpy()[felt], atol=atol)
        compared, total = compared + felt.sum(), total + felt.size
    assert compared > 0.8 * total


@pytest.mark.parametrize("pad", [pytest.param(0, marks=pytest.mark.slow), 11])
def test_the_loss_is_the_mean_over_tokens_and_ignores_padding(pad):
    def swapped(ids, width=0):
        """Pad with `pad`; where that is not 0, 0 is a token like others."""
        ids = np.pad(ids, ((0, 0), (0, width)))
        return np.where(ids == 0, pad, np.where(ids == pad, 0, ids)).astype(np.int32)

    config = dataclasses.replace(CONFIG, pad_id=pad)
    step, plain = made(config=config), batch()
    data = Batch(*map(swapped, plain[:2]))
    shifted = np.concatenate([np.ones((6, 1), np.int32), data.target[:, :-1]], axis=1)
    logits = np.asarray(step.model({"source": data.source, "target": shifted}), np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    real = data.target != pad
    assert pad == 0 or (data.target == 0).any()
    expected = -np.take_along_axis(logs, data.target[..., None], -1)[..., 0][real].mean()
    assert step.validate([data]).loss == pytest.approx(expected, rel=1e-5)
    assert float(step(data, 0, 1e-3)) == pytest.approx(expected, rel=1e-5)
    wider = Batch(swapped(plain.source, 3), swapped(plain.target, 4))
    assert float(made(config=config)(wider, 0, 1e-3)) == pytest.approx(expected, rel=1e-5)


def test_labels_are_smoothed_in_training_alone():
    """Training minimises the smoothed loss; the validation loss is not smoothed."""
    data, smooth, plain = batch(), made(label_smoothing=0.5), made()
    assert smooth.validate([data]).loss == pytest.approx(plain.validate([data]).loss)
    first = float(plain(data, 0, 0.0))
    spread = float(smooth(data, 0, 0.0))
    logits = plain._logits(tf.constant(data.source), tf.constant(data.target), training=False)
    real = data.target != 0
    all_words = -np.asarray(tf.nn.log_softmax(logits)).mean(-1)[real].mean()
    assert spread == pytest.approx(0.5 * first + 0.5 * all_words, rel=1e-5)


def test_steps_are_adam_on_the_clipped_gradient():
    """Against Keras' Adam, given the gradients of the same loss."""
    step, data = made(clip_norm=0.5), [batch(seed=s) for s in range(2)]
    reference = made()
    optimizer = keras.optimizers.Adam(beta_2=0.98, epsilon=1e-7, global_clipnorm=0.5)
    norms = []
    for i, one in enumerate(data):
        rate = 1e-2 / (i + 1)
        with tf.GradientTape() as tape:
            logits = reference._logits(tf.constant(one.source), tf.constant(one.target), True)
            loss = tf.reduce_sum(softmax_cross_entropy(logits, one.target, ignore_class=0))
            loss /= np.count_nonzero(one.target)
        variables = reference.model.trainable_variables
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        norms.append(float(tf.linalg.global_norm(gradients)))
        optimizer.learning_rate = rate
        optimizer.apply(gradients, variables)
        assert float(step(one, i, rate)) == pytest.approx(float(loss), rel=1e-4)
    assert max(norms) > 0.5, "nothing was clipped"
    assert_same_weights(step, reference)


def test_accumulated_batches_take_the_step_of_one_large_batch():
    """Of other sizes and lengths too: the mean is over all tokens, not over batches."""
    large, small = made(clip_norm=0.5), made(clip_norm=0.5, accumulate=2)
    for i in range(2):
        whole = batch(7, seed=i)
        parts = [Batch(*(side[rows] for side in whole[:2])) for rows in (slice(2), slice(2, 7))]
        parts[0] = Batch(parts[0].source, np.pad(parts[0].target, ((0, 0), (0, 3))))
        loss = float(large(whole, i, 1e-2))
        assert float(small(parts[0], i, 1e-2, parts[1:])) == pytest.approx(loss, rel=1e-5)
    assert_same_weights(large, small)
    assert all(not np.asarray(one).any() for one in small._sums)


def test_the_moving_average_follows_its_formula():
    step = made(ema=0.3)
    averages = [weight.numpy() for weight in step.model.weights]
    for i in range(3):  # the third has the decay that was asked for
        step(batch(seed=i), i, 1e-2)
        decay = np.float32(min(0.3, (2 + i) / (11 + i)))
        for place, weight in enumerate(step.model.weights):
            averages[place] = averages[place] + (1 - decay) * (weight.numpy() - averages[place])
    trained = [weight.numpy() for weight in step.model.weights]
    for expected, average in zip(averages, step.average, strict=True):
        np.testing.assert_allclose(average.numpy(), expected, atol=1e-6)
    with step.use_average():
        for weight, average in zip(step.model.weights, step.average, strict=True):
            assert (weight.numpy() == average.numpy()).all()
    for weight, value in zip(step.model.weights, trained, strict=True):
        assert (weight.numpy() == value).all(), "training goes on with its own"


def test_validation_counts_what_greedy_decoding_would_get_right():
    from heed.models import generate

    step = made()
    source = batch().source
    found = np.asarray(generate(step.model, source, max_length=6))
    # The model's own answers are right by definition if they end; two are then made wrong at one token.
    ended = np.flatnonzero((found == 2).any(axis=1))
    assert len(ended) > 2
    wrong = found.copy()
    for row, place in zip(ended, (0, 2), strict=False):
        wrong[row, place] = 4 if wrong[row, place] != 4 else 5
    assert step.validate([Batch(source, found)]).exact == pytest.approx(len(ended) / 6)
    result = step.validate([Batch(source[:3], wrong[:3]), Batch(source[3:], wrong[3:])])
    assert result.exact == pytest.approx((len(ended) - 2) / 6)
    assert result.token_accuracy < 1.0
    assert result.loss > 0


def test_no_translation_is_right_with_an_unknown_token_or_without_an_end(monkeypatch):
    """The model writes what is expected; no text of a translation is that of these rows."""
    step = made()
    monkeypatch.setattr(step, "_logits", lambda _, target, training: tf.one_hot(target, 15))
    rows = {(5, 6, 2): 1.0, (5, 3, 2): 0.0, (3, 2, 0): 0.0, (5, 6, 7): 0.0, (2, 0, 0): 1.0}
    for row, exact in rows.items():
        result = step.validate([Batch(batch(1).source, np.array([row], np.int32))])
        assert result.exact == exact, row
        assert result.token_accuracy == sum(i not in (0, 3) for i in row) / sum(i != 0 for i in row)
    together = np.array([*rows], np.int32)
    assert step.validate([Batch(batch(5).source, together)]).exact == pytest.approx(2 / 5)


REPLICAS = """
import numpy as np, tensorflow as tf
device = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
from tests.seq2seq.training.test_step import *
data = [batch(seed=s) for s in range(3)]
options = {"clip_norm": 0.5, "accumulate": 2, "ema": 0.9}
tf.config.run_functions_eagerly(True)
single = made(**options)
losses = [float(single(one, i, 1e-2, [one])) for i, one in enumerate(data)]
tf.config.run_functions_eagerly(False)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
keras.utils.set_random_seed(3)
with strategy.scope():
    model = Transformer(CONFIG)
    model.build()
double = TrainingStep(model, TrainingOptions(**options), strategy)
assert strategy.num_replicas_in_sync == 2
np.testing.assert_allclose([float(double(one, i, 1e-2, [one])) for i, one in enumerate(data)], losses, rtol=1e-5)
assert_same_weights(single, double)
np.testing.assert_allclose(single.validate(data), double.validate(data), rtol=1e-5)
for a, b, squares in zip(single.average, double.average, single.second):
    felt = np.sqrt(squares.numpy()) > 1e-5
    np.testing.assert_allclose(a.numpy()[felt], b.numpy()[felt], atol=3e-5)
for a, b in zip(single.second, double.second):
    np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-6)
print("same")
"""


@pytest.mark.slow
def test_two_replicas_take_the_step_of_one():
    """In a process of its own: devices are fixed once TensorFlow has started."""
    done = subprocess.run(
        [sys.executable, "-c", REPLICAS], capture_output=True, text=True, check=False
    )
    assert done.stdout == "same\n", done.stderr[-3000:]
