"""TF_CONFIG, as Kubernetes, Ray and people write it."""

import json

import pytest

from heed.errors import ClusterError
from heed.processes.cluster import Cluster, local_addresses, read_cluster

WORKERS = {"worker": ["a:1", "b:2"]}


def read(text):
    return read_cluster({"TF_CONFIG": text if isinstance(text, str) else json.dumps(text)})


def test_a_cluster():
    task = {"type": "worker", "index": 1}
    assert read({"cluster": WORKERS, "task": task}) == Cluster(("a:1", "b:2"), 1)
    with_chief = {"cluster": {"chief": ["c:3"], **WORKERS}, "task": task}
    assert read(with_chief) == Cluster(("c:3", "a:1", "b:2"), 2)
    with_chief["task"] = {"type": "chief", "index": "0"}
    assert read(with_chief).is_chief
    assert read_cluster({}) is None
    assert read(" ") is None
    assert read({"task": task}) is None


def test_a_cluster_survives_its_own_text():
    cluster = Cluster(local_addresses(3), 2)
    assert read(cluster.to_tf_config()) == cluster
    assert len(set(cluster.addresses)) == 3


@pytest.mark.parametrize(
    ("cluster", "task", "problem"),
    [
        ({"worker": ["a:1", "a:1"]}, {"type": "worker", "index": 0}, "a:1 is listed twice"),
        ({"worker": ["A:1", "a:1"]}, {"type": "worker", "index": 0}, "a:1 is listed twice"),
        (
            {"worker": ["localhost:1", "127.0.0.1:1"]},
            {"type": "worker", "index": 0},
            "127.0.0.1:1 is listed twice",
        ),
        ({"worker": [" a:1"]}, {"type": "worker", "index": 0}, "' a:1' is not host:port"),
        ({"worker": ["a"]}, {"type": "worker", "index": 0}, "'a' is not host:port"),
        ({"worker": ["a:0"]}, {"type": "worker", "index": 0}, "'a:0' is not host:port"),
        ({"worker": ["a:70000"]}, {"type": "worker", "index": 0}, "is not host:port"),
        ({"worker": ["::1:2"]}, {"type": "worker", "index": 0}, "is not host:port"),
        ({"worker": []}, {"type": "worker", "index": 0}, "has no worker"),
        ({"worker": "a:1"}, {"type": "worker", "index": 0}, "not an object of lists"),
        ({**WORKERS, "ps": ["c:1"]}, {"type": "worker", "index": 0}, "not with 'ps'"),
        ({**WORKERS, "chief": ["c:1", "d:1"]}, {"type": "worker", "index": 0}, "than one chief"),
        (WORKERS, {"type": "evaluator", "index": 0}, "no type that its cluster has"),
        (WORKERS, None, "no type that its cluster has"),
        (WORKERS, {"type": "worker", "index": 2}, "must be from 0 to 1"),
        (WORKERS, {"type": "worker", "index": -1}, "must be from 0 to 1"),
        (WORKERS, {"type": "worker"}, "must be from 0 to 1"),
        (WORKERS, {"type": "worker", "index": True}, "must be from 0 to 1"),
    ],
)
def test_a_malformed_one(cluster, task, problem):
    with pytest.raises(ClusterError, match="TF_CONFIG must be like") as caught:
        read({"cluster": cluster, "task": task})
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", "host0:2222", "[" * 99_999])
def test_no_object(text):
    with pytest.raises(ClusterError, match="TF_CONFIG must be like"):
        read(text)
