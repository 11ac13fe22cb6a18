"""What of Keras is replaced, whether this version allows it, and putting it in and taking it out."""

from __future__ import annotations

import functools
import inspect
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import keras
from keras.layers import Attention, GroupQueryAttention, MultiHeadAttention

from heed._keras import backend_module
from heed.acceleration import _multi_head, _op, _single_head, _switch

_PUBLIC = {GroupQueryAttention: "GroupQueryAttention"}  # which is not its `__name__`
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
        original: Any = self._original or getattr(self.owner, self.name, None)
        code = getattr(inspect.unwrap(original), "__code__", None)
        if code is None:
            found = "nothing" if original is None else repr(original)
            return f"{self.text}: expected a function, found {found}"
        source = pathlib.Path(code.co_filename)
        folder = pathlib.Path(self.package.__file__ or "").parent
        if hasattr(original, "__wrapped__") or folder not in source.parents:
            own = f"{self.package.__name__}'s own function"
            return f"{self.text}: expected {own}, found one that replaced it, of {source}"
        required, optional = self.replacement.required, self.replacement.optional
        names = tuple(inspect.signature(original).parameters)
        if names != (*required, *(name for name in optional if name in names)):
            return f"{self.text}: expected the parameters {required}, found {names}"
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
    return [
        Method(backend_module("nn"), "dot_product_attention", _op.backend_op, _op.NAME),
        Function(ops_nn, "dot_product_attention", _op.public_op, f"{_op.NAME} (soft-cap)"),
        *(
            Method(cls, name, made, f"keras.layers.{_PUBLIC.get(cls, cls.__name__)}.{name}")
            for cls, name, made in layers
        ),
    ]


def _changes(patches: list[Method]) -> Iterator[str]:
    """What of Keras is not as the replacements need it."""
    yield from filter(None, (patch.problem() for patch in patches))
    for cls, own in _CONSTRUCTORS.items():
        layer = f"keras.layers.{_PUBLIC.get(cls, cls.__name__)}"
        new = set(inspect.signature(cls.__init__).parameters) - {*_COMMON, *own}
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
    """What of the installed Keras is not as the replacements need it; empty if it can be accelerated."""
    try:
        return list(_changes(keras_patches()))
    except ImportError as error:
        return [str(error)]


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
    if found := changes():
        raise RuntimeError(
            f"heed.accelerate cannot replace the attention of Keras {keras.__version__}, and has changed nothing: "
            + "; ".join(found)
        )
    return keras_patches()
