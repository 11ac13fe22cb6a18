"""Registers names with TensorFlow, which takes each once; a later import of heed, as in a notebook, replaces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops, type_spec_registry


def register_gradient(name: str) -> Callable[[Any], Any]:
    """Register the gradient of an op."""
    ops.gradient_registry._registry.pop(name, None)
    return tf.RegisterGradient(name)


def register_type_spec(name: str) -> Callable[[Any], Any]:
    """Register a type of composite tensors."""
    type_spec_registry._NAME_TO_TYPE_SPEC.pop(name, None)
    return type_spec_registry.register(name)
