"""The workers of a strategy, and messages between two of them.

`tf.distribute` has no op that sends a tensor to one worker. A broadcast within a group of two is one: it is a
collective op of every strategy, in a process and between processes.
"""

from __future__ import annotations

import collections
import math
import threading
from typing import NamedTuple

import tensorflow as tf

from heed.ops.sizes import Size, ceil_div, minimum

# Keys of groups: far above those of TensorFlow's strategies, which count from 1.
_FIRST_GROUP = 1 << 24
MOST_WORKERS = 1024
# TensorFlow's broadcast takes no bfloat16; a message has its bits.
_SAME_BITS = {tf.bfloat16: tf.float16}
# Messages travel in pieces: TensorFlow's RPC holds some five copies of what is under way.
_PIECE = 2**20  # bytes
_ALIGNED = 16  # elements: a slice that begins at a multiple shares its tensor's memory

_lock = threading.Lock()
# The number of messages so far of a worker in a group. Both ends of a link count the same messages in the same order.
_counts: collections.Counter[tuple[int, int]] = collections.Counter()


class Worker(NamedTuple):
    """One of `workers` workers, by its number."""

    number: int
    workers: int


def current_worker() -> Worker:
    """Return the worker whose function is being traced or run; outside of `strategy.run` the only one.

    Raises:
        ValueError: if there are too many workers, or the strategy does not say which one this is while tracing.
    """
    context = tf.distribute.get_replica_context()
    count = 1 if context is None else context.num_replicas_in_sync
    if count == 1:
        return Worker(0, 1)
    index = tf.get_static_value(context.replica_id_in_sync_group)
    if index is None or count > MOST_WORKERS:
        raise ValueError(
            f"Sequence parallelism takes strategies of up to {MOST_WORKERS} workers that number them while tracing, "
            "such as MultiWorkerMirroredStrategy. Received: "
            f"{type(context.strategy).__name__} with {count} workers"
        )
    return Worker(int(index), count)


def send(x: tf.Tensor, worker: Worker, to: int) -> list[tf.Tensor]:
    """Send a tensor; return tensors that are there when it has arrived."""
    if x.dtype in _SAME_BITS:
        x = tf.bitcast(x, _SAME_BITS[x.dtype])
    flat = tf.reshape(x, [-1])
    return [
        tf.raw_ops.CollectiveBcastSendV2(
            input=tf.slice(flat, [begin], [length]), **_message(worker, to)
        )
        for begin, length in _pieces(x)
    ]


def receive(like: tf.Tensor, worker: Worker, sender: int) -> tf.Tensor:
    """Receive a tensor of the shape and dtype of `like`."""
    kind = _SAME_BITS.get(like.dtype, like.dtype)
    pieces: list[tf.Tensor] = []
    for _, length in _pieces(like):
        with tf.control_dependencies(pieces[-1:]):
            pieces.append(
                tf.raw_ops.CollectiveBcastRecvV2(shape=[length], T=kind, **_message(worker, sender))
            )
    x = tf.reshape(tf.concat(pieces, 0) if len(pieces) > 1 else pieces[0], tf.shape(like))
    x.set_shape(like.shape)
    return x if kind == like.dtype else tf.bitcast(x, like.dtype)


def _pieces(x: tf.Tensor) -> list[tuple[Size, Size]]:
    """Begin and length of each piece of the flat tensor; as many on both ends of a link."""
    # An unknown batch counts as one row.
    known = math.prod(1 if length is None else length for length in x.shape)
    count = max(1, ceil_div(known * x.dtype.size, _PIECE))
    total = known if x.shape.is_fully_defined() else tf.size(x)
    each = ceil_div(ceil_div(total, count), _ALIGNED) * _ALIGNED
    begins = [minimum(number * each, total) for number in range(count)]
    ends = [*begins[1:], total]
    return [(begin, end - begin) for begin, end in zip(begins, ends, strict=True)]


def _message(worker: Worker, other: int) -> dict[str, int]:
    first, second = sorted((worker.number, other))
    group = _FIRST_GROUP + first * MOST_WORKERS + second
    with _lock:
        instance = _counts[worker.number, group]
        _counts[worker.number, group] += 1
    return {"group_size": 2, "group_key": group, "instance_key": instance}
