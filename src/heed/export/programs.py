"""The programs of a model: functions of named tensors, traced with plain operations.

A Keras model is one program, "serve". A model that decodes is two: "encode" prepares a source for decoding, and
"decode_step" reads one token and scores the next. A loop of a few lines around them decodes, in any language.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from heed.export._plain_operations import plain_operations
from heed.export._recurrence import plain_loops
from heed.export.errors import ExportError
from heed.models import Decodable
from heed.ops import set_implementation
from heed.ops.backends.tensorflow import exportable

SERVE, ENCODE, DECODE_STEP = "serve", "encode", "decode_step"
STATE, MEMORY = "state_", "memory_"
# Two lengths that no model has: a state grows if its shape differs between them.
_LENGTH, _LONGER = 1009, 1013


@dataclasses.dataclass(frozen=True)
class Program:
    """One function of a model, which takes tensors by name and returns a dictionary of tensors."""

    name: str  # "serve", "encode" or "decode_step"
    function: Callable[..., dict[str, Any]]
    inputs: Mapping[str, tf.TensorSpec]  # None in a shape varies from call to call
    # The states of "decode_step" that get longer in each step: (B, P, ...), with P = 0 at first.
    growing: tuple[str, ...] = ()
    variables: Sequence[Any] = ()  # that it reads

    def trace(self, implementation: str = "exportable") -> Any:
        """Trace the function, with an implementation of attention; return a `ConcreteFunction` of tensors by name."""
        with exporting() if implementation == "exportable" else set_implementation(implementation):
            graph = tf.function(self.function, autograph=False)
            return graph.get_concrete_function(**self.inputs)

    def arrays(self, argument: str, given: Any) -> dict[str, NDArray[Any]]:
        """Return the arrays that a caller has given as `argument`, converted to the dtypes of the inputs.

        Raises:
            ExportError: unless each input has at least one sample, of the right shape and without NaN.
        """
        if not isinstance(given, Mapping) or set(given) != set(self.inputs):
            received = (
                ", ".join(map(str, given)) or "none" if isinstance(given, Mapping) else repr(given)
            )
            names = ", ".join(self.inputs)
            raise ExportError(
                f"`{argument}` must have an array for each input: {names}. Received: {received}"
            )
        found = {}
        for name, spec in self.inputs.items():
            try:
                array = np.asarray(given[name])
                if array.dtype.kind == "f" and not spec.dtype.is_floating:
                    raise TypeError(f"{array.dtype} was received")
                array = array.astype(spec.dtype.as_numpy_dtype)
            except (TypeError, ValueError) as error:
                raise ExportError(
                    f"`{name}` of `{argument}` must hold {spec.dtype.name}: {error}"
                ) from None
            if not spec.shape.is_compatible_with(array.shape) or not array.size:
                raise ExportError(
                    f"`{name}` of `{argument}` must have the shape {spec.shape}, and no size of 0. "
                    f"Received: {array.shape}"
                )
            if spec.dtype.is_floating and np.isnan(array).any():
                raise ExportError(f"`{name}` of `{argument}` must not hold NaN")
            found[name] = array
        return found


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Trace with plain operations only."""
    with set_implementation("exportable"), plain_loops(), plain_operations():
        yield


def programs_of(model: Any, source: tf.TensorSpec | None = None) -> list[Program]:
    """Return the programs of a model.

    Args:
        model: a built Keras model, or one that decodes (`heed.models.Decodable`).
        source: the input of a model that decodes, if it is not token ids (B, S).

    Raises:
        ValueError: if the model is not built, or its inputs are not known.
    """
    if isinstance(model, Decodable):
        if not model.built:
            model.build()
        return _decodable_programs(model, source)
    return [_keras_program(model)]


def _keras_program(model: Any) -> Program:
    """Return the program of a Keras model; inputs and outputs keep the model's names."""
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`model` must be a Keras model or one that decodes. Received: model={model!r}"
        )
    if not model.built or getattr(model, "inputs", None) is None:
        raise ValueError(
            "`model` must have symbolic inputs: be a Functional or a built Sequential model. "
            f"Wrap it: keras.Model(inputs, model(inputs)). Received: {type(model).__name__} {model.name!r}"
        )
    # A Sequential model has no input structure, only inputs.
    structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    symbols = keras.tree.flatten(structure)
    names = _unique([symbol.name for symbol in symbols])
    inputs = {
        name: tf.TensorSpec((None, *symbol.shape[1:]), symbol.dtype, name)
        for name, symbol in zip(names, symbols, strict=True)
    }

    def serve(**tensors: Any) -> dict[str, Any]:
        packed = keras.tree.pack_sequence_as(structure, [tensors[name] for name in names])
        return _named(model(packed, training=False))

    return Program(SERVE, serve, inputs, variables=model.variables)


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names in letters, digits and underscores, made different from each other."""
    found: list[str] = []
    for name in names:
        clean = "".join(letter if letter.isalnum() else "_" for letter in name)
        found.append(clean if clean not in found else f"{clean}_{len(found)}")
    return found


def _named(outputs: Any) -> dict[str, Any]:
    """Return outputs by name: the keys of a dictionary of tensors, else output_0, output_1 ..."""
    if isinstance(outputs, Mapping) and not any(map(keras.tree.is_nested, outputs.values())):
        return {str(name): tf.identity(x) for name, x in outputs.items()}
    return {f"output_{i}": tf.identity(x) for i, x in enumerate(keras.tree.flatten(outputs))}


def _decodable_programs(model: Any, source: tf.TensorSpec | None) -> list[Program]:
    """Return both programs of a model that decodes; "decode_step" alone for a language model."""
    if source is None:
        source = tf.TensorSpec((None, None), tf.int32, "source")
    alone = _needs_no_source(model)

    def start(given: Any, length: int = _LENGTH) -> tuple[Any, Any]:
        memory = () if alone else model.encode_source(model.check_source(given))
        return memory, model.make_state(tf.shape(given)[0], length, memory)

    # Symbolic: they tell structures and shapes, and which states grow.
    memory, state = _trace_symbols(start, source)
    _, longer = _trace_symbols(lambda given: start(given, _LONGER), source)
    grows = [
        one.shape.as_list() != other.shape.as_list()
        for one, other in zip(tf.nest.flatten(state), tf.nest.flatten(longer), strict=True)
    ]
    parts = {
        f"{MEMORY}{i}": tf.TensorSpec(x.shape, x.dtype, f"{MEMORY}{i}")
        for i, x in enumerate(tf.nest.flatten(memory))
    }
    states = {
        f"{STATE}{i}": tf.TensorSpec(
            [x.shape[0], None, *x.shape[2:]] if growing else x.shape, x.dtype, f"{STATE}{i}"
        )
        for i, (x, growing) in enumerate(zip(tf.nest.flatten(state), grows, strict=True))
    }
    growing = tuple(name for name, it_grows in zip(states, grows, strict=True) if it_grows)

    def decode_step(**tensors: Any) -> dict[str, Any]:
        flat = [
            tensors.get(name, tf.zeros([0] * spec.shape.rank, spec.dtype))
            for name, spec in parts.items()
        ]
        known = tf.nest.pack_sequence_as(memory, flat)
        with exportable.grow_caches() as with_room:
            before = [
                with_room(tensors[name], 1) if name in growing else tensors[name] for name in states
            ]
            logits, after = model.decode_step(
                tensors["tokens"], tensors["index"], tf.nest.pack_sequence_as(state, before), known
            )
        new = {f"{STATE}{i}": tf.identity(x) for i, x in enumerate(tf.nest.flatten(after))}
        return {"logits": logits, **new}

    inputs = {
        "tokens": tf.TensorSpec((None, 1), tf.int32, "tokens"),
        "index": tf.TensorSpec((), tf.int32, "index"),
        **states,
        **parts,
    }
    # Steps read only a part of the memory, once keys and values have been projected.
    whole = Program(DECODE_STEP, decode_step, inputs, growing, model.variables)
    read = _names_read(whole.trace())
    inputs = {
        name: spec for name, spec in inputs.items() if name in read or not name.startswith(MEMORY)
    }
    step = dataclasses.replace(whole, inputs=inputs)
    if alone:
        return [step]

    def encode(**tensors: Any) -> dict[str, Any]:
        outputs = {
            f"{prefix}{i}": x
            for prefix, structure in zip((MEMORY, STATE), start(tensors["source"]), strict=True)
            for i, x in enumerate(tf.nest.flatten(structure))
        }
        return {
            name: tf.identity(x)
            for name, x in outputs.items()
            if name in inputs and name not in growing
        }

    return [Program(ENCODE, encode, {"source": source}, variables=model.variables), step]


def _needs_no_source(model: Any) -> bool:
    """Return whether the model only continues a prompt, as a language model does."""
    try:
        return model.check_source(None) is None
    except (TypeError, ValueError):
        return False


def _trace_symbols(function: Callable[[Any], Any], source: tf.TensorSpec) -> Any:
    """Return the symbolic outputs of a function of a source; their graph is thrown away."""
    with exporting():
        graph = tf.function(function, autograph=False).get_concrete_function(source)
    return graph.structured_outputs


def _names_read(function: Any) -> set[str]:
    """Return the names of the arguments that the graph reads."""
    names = {spec.name: name for name, spec in function.structured_input_signature[1].items()}
    placeholders = (x for x in function.graph.inputs if x.consumers())
    return {names.get(x.op.name, x.op.name) for x in placeholders}
