"""Shared by the tests of one framework each."""

import pytest

from tests.backend import without_64_bits


@pytest.fixture(autouse=True)
def _as_users_have_jax():
    """Without the 64-bit numbers with which JAX runs other tests."""
    with without_64_bits():
        yield
