"""Shared by all tests: the environment, the seeds, hypothesis' effort and the number of worker processes."""

import functools
import gc
import os
import random

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")
if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores already. Children that the tests start inherit this.
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
if os.environ.get("ONEDNN_MAX_CPU_ISA", "").startswith(("SSE", "AVX2")):
    # TensorFlow asks the CPU, not oneDNN, whether oneDNN can multiply bfloat16. Held below what the
    # CPU has, oneDNN cannot, and TensorFlow 2.21 then crashes.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

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
if os.environ["KERAS_BACKEND"] == "jax":
    # JAX compiles for each shape: a second or two for an example. So there are few, and no search for a smaller one.
    _DEFAULT = {"max_examples": 4, "phases": (Phase.explicit, Phase.generate)}
else:
    _DEFAULT = {"max_examples": 15}
settings.register_profile("default", derandomize=True, **_DEFAULT, **_SHARED)
settings.register_profile("thorough", max_examples=150, **_SHARED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in several processes: `-n 0` runs it in one.

    Chosen files do not, for each process spends seconds on loading TensorFlow; nor do the slow tests, of which some
    measure times and want the machine for themselves.
    """
    if hasattr(config, "workerinput"):  # one of those processes: it starts none of its own
        return
    option = config.option
    everything = config.args_source is config.ArgsSource.TESTPATHS and option.markexpr == "not slow"
    if everything and getattr(option, "dist", None) == "no" and option.numprocesses is None:
        option.numprocesses, option.dist = "auto", "worksteal"


def pytest_collectstart() -> None:
    """Search no imported module for garbage: that takes a third of the time of collection."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt the objects of the imported libraries, which stay to the end, from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one for each core, and four at most: each takes up to 1.2 GiB of memory."""
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)


@pytest.fixture(autouse=True)
def _seeded():
    """Each test starts from the same seeds, in whatever order tests run.

    Keras draws the seeds of layers and initializers from Python's. A test that draws from TensorFlow's own
    generator, or Keras' global one, calls `keras.utils.set_random_seed` itself: here it would cost every test
    TensorFlow's cache of eager kernels.
    """
    random.seed(1234)
    np.random.seed(1234)  # noqa: NPY002 (for code under test that uses the global generator)


@pytest.fixture(autouse=True, scope="module")
def _compiled_programs_are_dropped():
    """JAX keeps each program that it compiled: without this the process grows to some 4 GB."""
    yield
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        jax.clear_caches()


@pytest.fixture
def optimized():
    """Compile JAX's programs as users do. Other tests turn optimizations off to save time, which changes rounding."""
    if os.environ["KERAS_BACKEND"] != "jax":
        yield
        return
    import jax

    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()


# Each test of what attention means runs on both.
IMPLEMENTATIONS = ("portable", "native")


@pytest.fixture(scope="module")
def chromium():
    """Yield a Chromium, for tests that import `tests.browser`."""
    from tests.browser import CHROMIUM, playwright

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@functools.cache
def _installed() -> dict[str, str]:
    """Return what this heed runs on, which no test changes for good; asking takes milliseconds."""
    import heed

    return heed.info()


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    """Yield the name of the implementation under test, which is the one that runs meanwhile.

    For "native" what runs is "auto": where XLA compiles, that takes the portable one.
    """
    import heed

    if request.param == "native" and _installed()["implementation"] != "native":
        pytest.skip(f"no native kernels: {_installed()['reason']}")
    with heed.set_implementation("auto" if request.param == "native" else "portable"):
        yield request.param
