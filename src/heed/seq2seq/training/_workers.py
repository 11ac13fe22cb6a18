"""The part of training that concerns several workers: who writes, equal values, different dropout."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from heed.processes.cluster import VARIABLE, Cluster

_LONGEST = 4096  # bytes of shared values
_ODD = 0x9E3779B1  # 2**32 / golden ratio: seeds of replicas that lie far apart


def make_strategy(cluster: Cluster) -> tf.distribute.Strategy:
    """Connect to all other workers, which TensorFlow allows only before it has computed anything in this process."""
    if cluster.size == 1:
        return tf.distribute.get_strategy()
    os.environ[VARIABLE] = cluster.to_tf_config()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.MultiWorkerMirroredStrategy(resolver)


class Workers:
    """The worker processes of a strategy that is in use in this process.

    Attributes:
        chief: whether this process is the first worker, the only one that writes.
        several: whether there are others.
        rank: the place of this worker among all.
        replicas: the replicas of this worker.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self.rank, workers = _find_place(strategy)
        self.chief, self.several = self.rank == 0, workers > 1
        self.replicas = strategy.num_replicas_in_sync // workers
        # One trace for all calls: each trace takes the next key of a collective operation, on every worker.
        self._sum = tf.function(self._sum_replicas, autograph=False, reduce_retracing=False)

    def share_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chief's JSON-ready values, at most 4 KiB, on every worker, bit for bit."""
        if not self.several:
            return dict(values)
        data = json.dumps(dict(values)).encode() if self.chief else b""
        if len(data) > _LONGEST:
            raise ValueError(f"`values` must have at most {_LONGEST} bytes. Received: {len(data)}")
        array = np.zeros(_LONGEST, np.int32)
        array[: len(data)] = np.frombuffer(data, np.uint8)
        (shared,) = self._sum([tf.constant(array)])
        return json.loads(shared.numpy().astype(np.uint8).tobytes().rstrip(b"\0"))

    def share_variables(self, variables: Sequence[Any]) -> None:
        """Give every worker the chief's values of variables, bit for bit."""
        if not self.several or not variables:
            return
        # Integers, of which the others are 0: a sum of floats would change the sign of a zero.
        bits = [_to_bits(np.asarray(one)) for one in variables]
        mine = [tf.constant(x if self.chief else np.zeros_like(x)) for x in bits]
        for variable, value in zip(variables, self._sum(mine), strict=True):
            dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
            variable.assign(value.numpy().view(dtype).reshape(variable.shape))

    def vary_seeds(self, states: Sequence[Any]) -> None:
        """Give each replica other random numbers, of states (2,) uint32 that are equal; the first keeps the chief's."""
        for state in states:
            state = getattr(state, "value", state)
            replicas = getattr(state, "values", (state,))
            for number, one in enumerate(replicas, self.rank * len(replicas)):
                if number:
                    first, second = one.numpy().tolist()
                    one.assign(np.array([(first + number * _ODD) % 2**32, second], np.uint32))

    def _sum_replicas(self, arrays: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        def one_replica(arrays: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
            context = tf.distribute.get_replica_context()
            first = tf.cast(context.replica_id_in_sync_group % self.replicas == 0, tf.int32)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, [x * first for x in arrays])

        sums = self._strategy.run(one_replica, args=(list(arrays),))
        return [self._strategy.experimental_local_results(one)[0] for one in sums]


def _to_bits(value: np.ndarray) -> np.ndarray:
    """Return the value's bits as int32, in one row."""
    if value.dtype.itemsize % 4:
        raise TypeError(f"variables must have words of 4 bytes. Received: {value.dtype}")
    return np.ascontiguousarray(value).reshape(-1).view(np.int32)


def _find_place(strategy: tf.distribute.Strategy) -> tuple[int, int]:
    """Return the rank of this worker and the number of workers: 0 of 1 for a strategy within one process."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return 0, 1
    spec = resolver.cluster_spec().as_dict()
    chiefs, workers = len(spec.get("chief", ())), len(spec.get("worker", ()))
    before = chiefs if resolver.task_type == "worker" else 0
    return before + resolver.task_id, max(1, chiefs + workers)
