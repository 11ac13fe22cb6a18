"""What of Keras is replaced, whether this version allows it, and putting it in and taking it out."""

from __future__ import annotations

import functools
import inspect
import pathlib
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import keras
from keras.layers import Attention, GroupQueryAttention, MultiHeadAttention

from heed._keras import backend_module
from heed.acceleration import _multi_head, _op, _single_head, _switch

# What a constructor may take. A new argument may be a new way to attend, which the replacement would ignore.
_COMMON = (
    "self dropout use_bias sliding_window flash_attention kernel_initializer bias_initializer kernel_regularizer "
    "bias_regularizer activity_regularizer kernel_constraint bias_constraint use_gate seed kwargs"
).split()
_CONSTRUCTORS = {
    MultiHeadAttention: "num_heads key_dim value_dim output_shape attention_axes".split(),
    GroupQueryAttention: "head_dim num_query_heads num_key_value_heads".split(),
    Attention: "use_scale score_mode".split(),
}
# Attributes that the replacements read, by the method that sets them.
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


@dataclass
class Method:
    """An attribute of a class or module, replaced.

    Attributes:
        owner, name: the attribute.
        replacement: what takes its place.
        text: its name for a report.
        package: where the original must come from.
    """

    owner: Any
    name: str
    replacement: _switch.Replacement
    text: str
    package: ModuleType = keras
    _original: Any = field(default=None, repr=False)
    _replaced_by: Any = field(default=None, repr=False)

    def problem(self) -> str | None:
        """Why the original cannot be replaced, or None."""
        original = self._original or getattr(self.owner, self.name, None)
        if original is None:
            return f"{self.text} does not exist"
        source = pathlib.Path(inspect.unwrap(original).__code__.co_filename)
        folder = pathlib.Path(self.package.__file__ or "").parent
        if hasattr(original, "__wrapped__") or folder not in source.parents:
            return f"{self.text} has been replaced by something else, in {source}"
        required, optional = self.replacement.required, self.replacement.optional
        names = tuple(inspect.signature(original).parameters)
        if names != (*required, *(name for name in optional if name in names)):
            return f"{self.text} takes {names}, expected {required}"
        return None

    def install(self) -> None:
        """Puts the replacement in, unless it is there or below what another library put there since."""
        if self._replaced_by is None:
            self._original = getattr(self.owner, self.name)
            self._replaced_by = self.replacement.make(self._original)
            self._replace(self._original, self._replaced_by)

    def uninstall(self) -> None:
        """Takes it out; where another library has wrapped it since, it stays and passes calls on."""
        if getattr(self.owner, self.name) is self._replaced_by:
            self._replace(self._replaced_by, self._original)
            self._original = self._replaced_by = None

    def _replace(self, old: Any, new: Any) -> None:
        setattr(self.owner, self.name, new)


class Function(Method):
    """A function of a module, replaced in each loaded module that has it under its name.

    `from keras.ops import dot_product_attention` makes a copy of the name, which a new attribute of the owner would
    not reach. A call that is under way goes on with what it began.
    """

    def _replace(self, old: Any, new: Any) -> None:
        for module in tuple(sys.modules.values()):
            names = getattr(
                module, "__dict__", {}
            )  # not `getattr`: some modules load others when asked
            if names.get(self.name) is old:
                names[self.name] = new


@functools.cache
def keras_patches() -> list[Method]:
    """Everything that is replaced in Keras, in the order in which a report names it."""
    from keras.src.ops import nn as ops_nn

    layers: list[tuple[type, str, _switch.Replacement]] = [
        (MultiHeadAttention, "call", _multi_head.call),
        (MultiHeadAttention, "_compute_attention", _multi_head.compute_attention),
        (MultiHeadAttention, "compute_output_spec", _multi_head.compute_output_spec),
        (GroupQueryAttention, "call", _multi_head.call),
        (GroupQueryAttention, "_compute_attention", _multi_head.compute_attention),
        (Attention, "call", _single_head.call),
    ]
    public = {GroupQueryAttention: "GroupQueryAttention"}  # which is not its `__name__`
    return [
        Method(backend_module("nn"), "dot_product_attention", _op.backend_op, _op.NAME),
        Function(ops_nn, "dot_product_attention", _op.public_op, f"{_op.NAME} (soft-cap)"),
        *(
            Method(cls, name, made, f"keras.layers.{public.get(cls, cls.__name__)}.{name}")
            for cls, name, made in layers
        ),
    ]


def problems(patches: list[Method]) -> list[str]:
    """Why this version of Keras cannot be accelerated; empty if it can."""
    found = [problem for patch in patches if (problem := patch.problem())]
    for cls, own in _CONSTRUCTORS.items():
        new = set(inspect.signature(cls.__init__).parameters) - {*_COMMON, *own}
        if new:
            found.append(
                f"keras.layers.{cls.__name__} takes new arguments: {', '.join(sorted(new))}"
            )
        for name, attributes in _ATTRIBUTES[cls].items():
            function = inspect.unwrap(getattr(cls, name))
            missing = set(attributes.split()) - set(function.__code__.co_names)
            if missing:
                found.append(f"keras.layers.{cls.__name__}.{name} does not use {sorted(missing)}")
    return found


def check_keras() -> list[Method]:
    """The patches for the installed Keras.

    Raises:
        RuntimeError: if Keras runs on another backend than TensorFlow, or is a version in which something has moved.
    """
    if keras.config.backend() != "tensorflow":
        raise RuntimeError(
            "heed.accelerate needs Keras on its TensorFlow backend. "
            f"Received: keras.config.backend()={keras.config.backend()!r}"
        )
    try:
        patches = keras_patches()
        found = problems(patches)
    except (AttributeError, ImportError) as error:
        found = [str(error)]
    if found:
        raise RuntimeError(
            f"heed.accelerate cannot replace the attention of Keras {keras.__version__}, and has changed nothing: "
            + "; ".join(found)
        )
    return patches
