"""The schemas of Kubernetes, for tests of the manifests; skips without kubernetes-validate."""

import copy

import pytest

VERSIONS = ("1.30", "1.34")


def check_schema(manifest, version):
    """Fields that a version of Kubernetes does not know are refused."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(manifest, version, strict=True)
    wrong = copy.deepcopy(manifest)
    wrong["spec"]["selectr"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)
