"""The Kubernetes manifests of `heed serve`: valid, and in agreement with each other and with heed."""

from pathlib import Path

import pytest
import yaml

from tests.kubernetes import VERSIONS, check_schema

PATH = Path(__file__).parents[1] / "examples" / "kubernetes" / "serving.yaml"
KINDS = ["Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"]


@pytest.fixture
def manifests():
    with PATH.open(encoding="utf-8") as file:
        found = list(yaml.safe_load_all(file))
    assert [one["kind"] for one in found] == KINDS
    return dict(zip(KINDS, found, strict=True))


@pytest.fixture
def pod(manifests):
    return manifests["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture
def container(pod):
    (one,) = pod["containers"]
    return one


def serving_options(container):
    """Return the options of `heed serve` in the manifest, as heed reads them."""
    from heed.cli._command import _parse

    command, *words = container["command"]
    assert command == "heed"
    return _parse([*words, *container["args"]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_of_kubernetes(manifests, kind, version):
    check_schema(manifests[kind], version)


def test_labels_and_ports_agree(manifests, container):
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["Service"]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (port,) = container["ports"]
    assert manifests["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert serving_options(container).port == port["containerPort"]
    assert serving_options(container).host == "0.0.0.0"
    target = manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    deployment = manifests["Deployment"]
    assert target == {
        "apiVersion": deployment["apiVersion"],
        "kind": "Deployment",
        "name": deployment["metadata"]["name"],
    }
    assert manifests["Service"]["metadata"]["name"] in serving_options(container).allowed_host


def test_a_budget_leaves_pods_that_may_go(manifests):
    least = manifests["HorizontalPodAutoscaler"]["spec"]["minReplicas"]
    assert manifests["PodDisruptionBudget"]["spec"]["minAvailable"] < least


def test_a_pod_has_time_to_answer_its_last_requests(pod, container):
    from heed.seq2seq.serving._processes import _KILL_AFTER

    drain = serving_options(container).drain
    command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + drain + _KILL_AFTER
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > drain


def test_probes_and_metrics_are_those_of_the_server(manifests, container):
    from heed.seq2seq.serving._metrics import Metrics

    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] == "/health"
    (metric,) = manifests["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert f"\n{name} " in Metrics(lambda: 0).text().decode()
    annotations = manifests["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(container["ports"][0]["containerPort"])
