"""A language model whose sequence is split across two worker processes.

Tutorials train on sequences that fit one machine. Here each of two processes holds half of every sequence, an early
stretch and a late one, and attention runs over the whole of it: keys and values travel between the workers
(`heed.distributed.ring_attention`).

The task needs that: a row of noise has one "answer" token somewhere in its first quarter, which the first worker holds,
and questions in its middle half, which the second worker holds. After each question comes the answer. Without the other
worker's keys, chance is the best score on the first question of a row; that score is the baseline.

What differs from training on one worker, all of it in `train_worker`:
- each worker passes its part of the tokens, cut by `split_sequence`;
- the loss is divided by the number of questions of all workers, as gradients are summed over them.

On machines of their own, set TF_CONFIG on each and run this file with the argument "worker".

    python examples/recipes/split_sequence.py [FOLDER FOR THE PICTURE]
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

LENGTH, BATCH, STEPS, WORKERS = 256, 64, 125, 2
QUESTION, ANSWERS, VOCABULARY = 3, 8, 64  # answers are the tokens from 4 on, noise follows them


def make_rows(seed: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens (count, LENGTH), labels, and weights: 1 for the first question of each row, 0 elsewhere."""
    draw = np.random.default_rng(seed)
    text = draw.integers(4 + ANSWERS, VOCABULARY, (count, LENGTH + 1))
    for row in text:
        answer = draw.integers(4, 4 + ANSWERS)
        row[draw.integers(0, LENGTH // 4)] = answer
        asked = draw.integers(LENGTH // 4, 3 * LENGTH // 4 - 1)
        row[asked], row[asked + 1] = QUESTION, answer
    tokens, labels = text[:, :-1].astype("int32"), text[:, 1:].astype("int32")
    return tokens, labels, (tokens == QUESTION).astype("float32")


def train_worker() -> list[float]:
    """Train as the worker that TF_CONFIG names; return the share of right answers before, and after each 25 steps."""
    import keras
    import tensorflow as tf

    from heed.distributed import split_sequence
    from heed.models import LanguageModel, LanguageModelConfig

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    keras.utils.set_random_seed(0)
    with strategy.scope():
        config = LanguageModelConfig(
            VOCABULARY, layers=1, width=64, num_heads=4, feed_forward_width=128
        )
        model = LanguageModel(config, sequence_parallel=True)
        model.build()
        optimizer = keras.optimizers.Adam(1e-2)
        optimizer.build(model.trainable_variables)

    def train(tokens: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                labels, model(tokens, training=True), from_logits=True
            )
            loss = tf.reduce_sum(losses * weights) / BATCH  # the questions of all workers
        variables = model.trainable_variables
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def count(tokens: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        answers = tf.argmax(model(tokens), axis=-1, output_type=tf.int32)
        return tf.reduce_sum(tf.cast(answers == labels, tf.float32) * weights)

    def over_workers(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def run(*rows: tf.Tensor) -> tf.Tensor:
            results = strategy.run(function, args=rows)
            return strategy.reduce(tf.distribute.ReduceOp.SUM, results, axis=None)

        return tf.function(run, autograph=False)

    def parts(seed: int, rows: int) -> list[tf.Tensor]:
        return [tf.constant(split_sequence(x, workers, worker)) for x in make_rows(seed, rows)]

    step, right = over_workers(train), over_workers(count)
    test = parts(10**6, 64)
    scores = []
    for number in range(STEPS + 1):
        if number % 25 == 0:
            scores.append(float(right(*test)) / 64)
        step(*parts(number, BATCH))
    return scores


def launch() -> list[float]:
    """Start a process for each worker on this machine; return the scores, which all workers agree on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    processes = []
    for index in range(WORKERS):
        cluster = {
            "cluster": {"worker": addresses},
            "task": {"type": "worker", "index": index},
        }
        environment = {**os.environ, "TF_CONFIG": json.dumps(cluster)}
        command = [sys.executable, __file__, "worker"]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        )
    scores = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    if scores[0] != scores[1]:
        raise RuntimeError(f"The workers disagree: {scores}")
    return scores[0]


def main(folder: str | Path = "heed-pictures") -> tuple[float, float]:
    """Train on two workers; return the share of right answers, and that of the best guess of one of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scores, baseline = launch(), 1 / ANSWERS
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(range(0, STEPS + 1, 25), scores, marker="o", label="two workers")
    axes.axhline(baseline, color="grey", linestyle="--", label="without the other worker's keys")
    axes.set(xlabel="step", ylabel="right answers", ylim=(0, 1.05))
    axes.legend()
    figure.savefig(Path(folder) / "split_sequence.png")
    pyplot.close(figure)
    print(f"right answers: {scores[-1]:.2f}, without the other worker's keys: {baseline:.2f}")
    return scores[-1], baseline


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        print(json.dumps(train_worker()))
    else:
        main(*sys.argv[1:2])
