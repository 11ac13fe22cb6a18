"""TensorFlow's strategy for the workers of a cluster."""

from __future__ import annotations

import os

import tensorflow as tf

from heed.processes.cluster import VARIABLE, Cluster


def make_strategy(cluster: Cluster) -> tf.distribute.Strategy:
    """Connect this process to the other workers.

    It waits for all of them. TensorFlow allows it only before anything has been computed in the process.

    Args:
        cluster: the workers.

    Returns:
        A strategy with one replica on each worker; the default strategy if there is one worker.

    Raises:
        RuntimeError: if TensorFlow has computed something already.
        tf.errors.OpError: if the workers cannot be connected.
    """
    if cluster.size == 1:
        return tf.distribute.get_strategy()
    os.environ[VARIABLE] = cluster.to_tf_config()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.MultiWorkerMirroredStrategy(resolver)
