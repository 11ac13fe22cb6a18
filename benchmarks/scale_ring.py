"""Training a language model whose sequence is split across worker processes on this machine: memory and time.

A worker's memory is the peak of its resident memory less that after a step over a short sequence: it is
what the length costs, without TensorFlow, the weights and the optimizer.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.results import Row
from benchmarks.worker import peak_memory
from heed.processes.child import Channel
from heed.processes.cluster import Cluster, local_addresses
from heed.processes.supervise import Worker, run_group

# Of the step that sets the base.
_SHORT = 256
_VOCABULARY = 256
_ENVIRONMENT = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    # glibc keeps freed tensors for the thread that freed them, and a worker with messages has many threads.
    "MALLOC_MMAP_THRESHOLD_": str(2**20),
    # With oneDNN, TensorFlow takes memory in regions that double in size, and returns none.
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


class Setting(NamedTuple):
    """A language model and its training step."""

    length: int = 32768  # of the whole sequence
    layers: int = 2
    width: int = 128
    steps: int = 1  # that are timed


class Result(NamedTuple):
    """What one worker measured."""

    seconds: float  # of the fastest step
    mib: float  # the peak memory that the length costs
    losses: list[float]  # of all steps over the whole sequence


def measure(setting: Setting, workers: int) -> list[Result]:
    """Train on `workers` processes of one thread each; return the result of each."""
    addresses = local_addresses(workers)
    group = []
    for rank in range(workers):
        config = Cluster(addresses, rank).to_tf_config() if workers > 1 else "{}"
        train = functools.partial(_train, setting, rank, workers)
        group.append(Worker(f"worker {rank}", train, {**_ENVIRONMENT, "TF_CONFIG": config}))
    outcome = run_group(group)
    if outcome.failure:
        raise RuntimeError(outcome.failure.describe())
    return [end.said for end in outcome.exits]


def measure_memory(rounds: int) -> Iterator[Row]:
    """Yield the memory of one worker and of each of two, their ratio, and the seconds of a step."""
    setting = Setting(steps=max(1, rounds // 5))
    one, two = (measure(setting, workers) for workers in (1, 2))
    alone, largest = one[0].mib, max(result.mib for result in two)
    tokens = f"{setting.length:,} tokens"
    yield Row(f"peak memory for {tokens}, one worker", alone, unit="MiB")
    yield Row(f"peak memory for {tokens}, each of two workers", largest, unit="MiB")
    yield Row("each of two workers / one", largest / alone, bar=0.6, at_most=True)
    yield Row("a step of one worker", one[0].seconds, unit="s")
    yield Row("a step of two workers", max(result.seconds for result in two), unit="s")


def _train(setting: Setting, worker: int, workers: int, channel: Channel) -> None:
    """Train, in this process, and send the `Result`."""
    import keras
    import numpy as np
    import tensorflow as tf

    from heed.distributed import split_sequence
    from heed.models import LanguageModel, LanguageModelConfig
    from heed.ops import softmax_cross_entropy

    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy() if workers > 1 else tf.distribute.get_strategy()
    )
    keras.utils.set_random_seed(0)
    config = LanguageModelConfig(
        _VOCABULARY,
        layers=setting.layers,
        width=setting.width,
        num_heads=4,
        feed_forward_width=4 * setting.width,
    )
    with strategy.scope():
        model = LanguageModel(config, sequence_parallel=True)
        model.build()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def train(tokens: Any, labels: Any) -> Any:
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            losses = softmax_cross_entropy(model(tokens, training=True), labels)
            # The mean over the tokens of all workers: their gradients are summed.
            loss = tf.reduce_sum(losses) / tf.cast(tf.size(labels) * workers, tf.float32)
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @tf.function(autograph=False)
    def step(tokens: Any, labels: Any) -> Any:
        losses = strategy.run(train, args=(tokens, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def parts_of(length: int) -> list[Any]:
        # Counts of a byte that depend on the position: a text that can be learned.
        text = np.cumsum(np.arange(length + 1) % 7)[None].astype("int32") % _VOCABULARY
        parts = [split_sequence(x, workers, worker) for x in (text[:, :-1], text[:, 1:])]
        return [tf.constant(part) for part in parts]

    def run(length: int) -> float:
        return float(step(*parts_of(length)))

    step.get_concrete_function(*parts_of(setting.length))  # the graph is not what the length costs
    run(_SHORT)
    base = peak_memory()
    losses, seconds = [run(setting.length)], []
    for _ in range(setting.steps):
        start = time.perf_counter()
        losses.append(run(setting.length))
        seconds.append(time.perf_counter() - start)
    channel.send(Result(min(seconds, default=0.0), peak_memory() - base, losses))
