"""What every test shares: a quiet TensorFlow, the seeds, and how hard hypothesis tries."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
from hypothesis import HealthCheck, settings

# HYPOTHESIS_PROFILE=thorough tries ten times as many examples.
# The default tries the same examples in each run, so that a failure is never a matter of luck.
_SHARED = {
    "deadline": None,
    # `implementation` holds for all examples of a test, which is what is wanted.
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
    "print_blob": True,
}
settings.register_profile("default", max_examples=15, derandomize=True, **_SHARED)
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


# Each test of what attention means runs on both.
IMPLEMENTATIONS = ("portable", "native")


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    """The name of the implementation under test, which is the one that runs meanwhile.

    For "native" what runs is "auto": where XLA compiles, that takes the portable one.
    """
    import heed

    if request.param == "native" and heed.info()["implementation"] != "native":
        pytest.skip(f"no native kernels: {heed.info()['reason']}")
    with heed.set_implementation("auto" if request.param == "native" else "portable"):
        yield request.param
