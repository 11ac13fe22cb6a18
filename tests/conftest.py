"""What every test shares: a quiet TensorFlow, the seeds, and how hard hypothesis tries."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
from hypothesis import HealthCheck, settings

# HYPOTHESIS_PROFILE=thorough tries ten times as many examples.
_SHARED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("default", max_examples=15, **_SHARED)
settings.register_profile("thorough", max_examples=150, **_SHARED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _seeded():
    """Each test starts from the same seed, in whatever order tests run."""
    import numpy as np

    np.random.seed(1234)  # noqa: NPY002 (for code under test that uses the global generator)
    keras = __import__("sys").modules.get("keras")
    if keras is not None:
        keras.utils.set_random_seed(1234)
