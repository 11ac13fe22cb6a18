"""The Kubernetes manifests of `heed serve` and `heed train`: valid, and in agreement with each other and with heed."""

import copy
from pathlib import Path

import pytest
import yaml

from heed.processes.cluster import read_cluster

FOLDER = Path(__file__).parents[1] / "examples" / "kubernetes"
KINDS = {
    "serving": ["Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"],
    "train": ["Service", "Job"],
}


def read_manifests(name):
    with (FOLDER / f"{name}.yaml").open(encoding="utf-8") as file:
        found = list(yaml.safe_load_all(file))
    assert [one["kind"] for one in found] == KINDS[name]
    return dict(zip(KINDS[name], found, strict=True))


def command_options(container):
    """Return the options of heed's command in a manifest, as heed reads them."""
    from heed.cli._command import _parse

    command, *words = [*container["command"], *container["args"]]
    assert command == "heed"
    return _parse(words)


@pytest.mark.parametrize(
    ("name", "kind"), [(n, kind) for n, kinds in KINDS.items() for kind in kinds]
)
@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_the_schema_of_kubernetes(name, kind, version):
    """Fields that a version of Kubernetes does not know are refused."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    manifest = read_manifests(name)[kind]
    kubernetes_validate.validate(manifest, version, strict=True)
    wrong = copy.deepcopy(manifest)
    wrong["spec"]["selectr"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


@pytest.fixture
def manifests():
    return read_manifests("serving")


@pytest.fixture
def container(manifests):
    (one,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    return one


def test_labels_and_ports_agree(manifests, container):
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["Service"]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (port,) = container["ports"]
    assert manifests["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert command_options(container).port == port["containerPort"]
    assert command_options(container).host == "0.0.0.0"
    target = manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    deployment = manifests["Deployment"]
    assert target == {
        "apiVersion": deployment["apiVersion"],
        "kind": "Deployment",
        "name": deployment["metadata"]["name"],
    }
    assert manifests["Service"]["metadata"]["name"] in command_options(container).allowed_host


def test_a_budget_leaves_pods_that_may_go(manifests):
    least = manifests["HorizontalPodAutoscaler"]["spec"]["minReplicas"]
    assert manifests["PodDisruptionBudget"]["spec"]["minAvailable"] < least


def test_a_pod_has_time_to_answer_its_last_requests(manifests, container):
    from heed.seq2seq.serving._processes import _KILL_AFTER

    drain = command_options(container).drain
    command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
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


def test_the_workers_find_each_other():
    service, job = read_manifests("train").values()
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


def test_the_paths_of_training_lie_on_its_volume():
    (container,) = read_manifests("train")["Job"]["spec"]["template"]["spec"]["containers"]
    parsed = command_options(container)
    (volume,) = container["volumeMounts"]
    for path in (parsed.run, parsed.config):
        assert str(path).startswith(volume["mountPath"] + "/")
