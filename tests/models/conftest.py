"""Op by op: most tests are of what is computed, and to trace a graph takes longer than to run it once."""

import pytest

from tests.backend import BACKEND, tf


@pytest.fixture
def compiled():
    """For tests of what is compiled, with `usefixtures`: their functions are traced as a user's are."""


@pytest.fixture(autouse=True)
def _op_by_op(request):
    """On TensorFlow; PyTorch always runs op by op, and JAX compiles."""
    if BACKEND != "tensorflow":
        yield
        return
    tf.config.run_functions_eagerly("compiled" not in request.fixturenames)
    yield
    tf.config.run_functions_eagerly(False)
