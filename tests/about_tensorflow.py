"""TensorFlow, for modules of tests that are about it: on another backend of Keras they are skipped on import."""

from __future__ import annotations

import pytest

from tests.backend import BACKEND

if BACKEND != "tensorflow":
    pytest.skip("is about TensorFlow", allow_module_level=True)

import tensorflow as tf

__all__ = ["tf"]
