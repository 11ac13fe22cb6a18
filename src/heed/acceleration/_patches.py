"""The functions of Keras that heed replaces, and checks that the installed version allows it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import keras
from keras.layers import Attention, GroupQueryAttention, MultiHeadAttention

from heed.acceleration import _multi_head, _single_head, op
from heed.keras_modules import backend_module
from heed.patching import Patch, Replacement

# The known arguments of constructors. A new one may change the attention, and the replacement would ignore it.
_COMMON = (
    "self dropout use_bias sliding_window flash_attention kernel_initializer bias_initializer kernel_regularizer "
    "bias_regularizer activity_regularizer kernel_constraint bias_constraint use_gate seed kwargs"
).split()
_CONSTRUCTORS = {
    MultiHeadAttention: "num_heads key_dim value_dim output_shape attention_axes".split(),
    GroupQueryAttention: "head_dim num_query_heads num_key_value_heads".split(),
    Attention: "use_scale score_mode".split(),
}
# Attributes that the replacements read, by the method that sets or reads them in Keras.
_ATTRIBUTES = {
    MultiHeadAttention: {
        "__init__": "_inverse_sqrt_key_dim _attention_axes _dropout",
        "build": "_query_dense _key_dense _value_dense _output_dense",
        "_build_attention": "_dropout_layer",
    },
    GroupQueryAttention: {
        "__init__": "_inverse_sqrt_head_dim dropout",
        "build": "_query_dense _key_dense _value_dense _output_dense _dropout_layer",
        "call": "_return_attention_scores",
    },
    Attention: {
        "__init__": "score_mode dropout seed_generator",
        "build": "scale concat_score_weight",
        "call": "_validate_inputs",
    },
}


@functools.cache
def keras_patches() -> list[Patch]:
    """Return all patches of Keras, in the order of a report."""
    from keras.src.ops import nn as ops_nn

    name = "dot_product_attention"
    layers: list[tuple[type, str, Replacement]] = [
        (MultiHeadAttention, "call", _multi_head.call),
        (MultiHeadAttention, "_compute_attention", _multi_head.compute_attention),
        (MultiHeadAttention, "compute_output_spec", _multi_head.compute_output_spec),
        (GroupQueryAttention, "call", _multi_head.call),
        (GroupQueryAttention, "_compute_attention", _multi_head.compute_attention),
        (Attention, "call", _single_head.call),
    ]
    return [
        Patch(backend_module("nn"), name, op.backend_op, op.NAME, keras),
        Patch(ops_nn, name, op.public_op, f"{op.NAME} (soft-cap)", keras, copies=True),
        *(
            Patch(cls, name, replacement, f"{_public_name(cls)}.{name}", keras)
            for cls, name, replacement in layers
        ),
    ]


def _public_name(cls: type) -> str:
    name = "GroupQueryAttention" if cls is GroupQueryAttention else cls.__name__
    return f"keras.layers.{name}"


def _changes(patches: list[Patch]) -> Iterator[str]:
    """Describe each difference from the Keras that the replacements expect."""
    yield from filter(None, (patch.find_problem() for patch in patches))
    for cls, arguments in _CONSTRUCTORS.items():
        layer = _public_name(cls)
        new = set(inspect.signature(cls.__init__).parameters) - {*_COMMON, *arguments}
        if new:
            yield f"{layer}: expected no new arguments, found {', '.join(sorted(new))}"
        for name, attributes in _ATTRIBUTES[cls].items():
            function: Any = getattr(cls, name, None)
            code = getattr(inspect.unwrap(function), "__code__", None)
            missing = set(attributes.split()) - set(code.co_names if code else ())
            if missing:
                expected = ", ".join(sorted(missing))
                yield f"{layer}.{name}: expected the use of {expected}, found none"


def changes() -> list[str]:
    """Describe how the installed Keras differs from what heed expects; empty if it can be accelerated."""
    try:
        return list(_changes(keras_patches()))
    except ImportError as error:
        return [str(error)]


def check_keras() -> list[Patch]:
    """Return the patches for the installed Keras.

    Raises:
        RuntimeError: if it is a version that heed cannot patch.
    """
    if found := changes():
        raise RuntimeError(
            f"heed.accelerate cannot replace the attention of Keras {keras.__version__}, and has changed nothing: "
            + "; ".join(found)
        )
    return keras_patches()
