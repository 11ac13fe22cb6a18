"""The Kubernetes manifests of `heed train`: valid, and in agreement with each other and with heed."""

from pathlib import Path

import pytest
import yaml

from heed.processes.cluster import read_cluster
from tests.kubernetes import VERSIONS, check_schema

PATH = Path(__file__).parents[1] / "examples" / "kubernetes" / "train.yaml"


@pytest.fixture
def manifests():
    with PATH.open(encoding="utf-8") as file:
        return {one["kind"]: one for one in yaml.safe_load_all(file)}


@pytest.mark.parametrize("kind", ["Service", "Job"])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_of_kubernetes(manifests, kind, version):
    check_schema(manifests[kind], version)


def test_the_workers_find_each_other(manifests):
    service, job = manifests["Service"], manifests["Job"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    label = "batch.kubernetes.io/job-name"  # which the controller of jobs gives to pods
    assert service["spec"]["selector"] == {label: job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    (port,) = container["ports"]
    names = [one["name"] for one in container["env"]]
    assert names.index("INDEX") < names.index("TF_CONFIG")  # only then it is filled in
    text = container["env"][names.index("TF_CONFIG")]["value"]
    count = job["spec"]["completions"]
    assert job["spec"]["parallelism"] == count
    for index in range(count):
        cluster = read_cluster({"TF_CONFIG": text.replace("$(INDEX)", str(index))})
        assert cluster.rank == index
        assert cluster.addresses == tuple(
            f"{job['metadata']['name']}-{rank}.{pod['subdomain']}:{port['containerPort']}"
            for rank in range(count)
        )


def test_the_command_is_one_of_heed(manifests):
    from heed.cli._command import _parse

    (container,) = manifests["Job"]["spec"]["template"]["spec"]["containers"]
    command, *words = [*container["command"], *container["args"]]
    assert command == "heed"
    parsed = _parse(words)
    (volume,) = container["volumeMounts"]
    for path in (parsed.run, parsed.config):
        assert str(path).startswith(volume["mountPath"] + "/")
