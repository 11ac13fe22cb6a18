"""Samples for comparing an exported model with the original: the caller's, or random ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from heed.export._verify import Samples, call_timed
from heed.export.errors import ExportError
from heed.export.programs import Program
from heed.models import Decodable, generate

# Random samples and their length, where it is free; the batch size of translations; how many samples are scored.
_ROWS, _LENGTH, _BATCH, _SCORED = 8, 12, 64, 64


def sample_arrays(
    model: Any, programs: list[Program], given: Mapping[str, Any] | None
) -> dict[str, NDArray[Any]]:
    """Return the inputs to compare on: those that are given, as for `export`, or random ones."""
    if given is None:
        return _draw(model, programs[0])
    if "source" in programs[0].inputs or not isinstance(model, Decodable):
        found = programs[0].arrays("samples", given)
        size = getattr(getattr(model, "config", None), "source_vocabulary_size", None)
        ids = found.get("source")
        if size is not None and ids is not None and not ((ids >= 0) & (ids < size)).all():
            raise ExportError(
                f"`source` of `samples` must hold tokens from 0 to {size - 1}. "
                f"Received: {ids.min()} to {ids.max()}"
            )
        return found
    if not isinstance(given, Mapping) or not np.size(given.get("source", ())):
        raise ExportError("`samples` must have `source`, of a language model any rows")
    return {"source": np.zeros((np.shape(given["source"])[0], 1), np.int32)}


def samples_of(
    model: Any, programs: list[Program], arrays: Mapping[str, NDArray[Any]], longest: int
) -> Samples:
    """Return the inputs with the model's own outputs."""
    if isinstance(model, Decodable):
        found = _translate(model, arrays["source"], len(programs) == 1, longest)
    else:
        found = _serve(programs[0], arrays)
    if any(np.isnan(x).any() for x in found.answers.values() if x.dtype.kind == "f"):
        raise ExportError("the model itself answers with NaN: look for NaN in its weights")
    return found


def _serve(program: Program, arrays: Mapping[str, NDArray[Any]]) -> Samples:
    call = tf.function(program.function, autograph=False)
    tensors = {name: tf.constant(x) for name, x in arrays.items()}
    found, seconds = call_timed(lambda: {name: x.numpy() for name, x in call(**tensors).items()})
    return Samples(arrays, found, len(next(iter(arrays.values()))), seconds)


def _translate(model: Any, source: NDArray[Any], alone: bool, longest: int) -> Samples:
    """Return greedy translations of all sources, and token scores of the first ones."""
    config = model.config

    def decode(rows: NDArray[Any]) -> NDArray[Any]:
        if alone:  # a language model begins at the start
            nothing = np.zeros((len(rows), 0), np.int32)
            return np.asarray(generate(model, prompt=nothing, max_length=longest))
        return np.asarray(generate(model, rows, max_length=longest))

    parts = [source[i : i + _BATCH] for i in range(0, len(source), _BATCH)]
    tokens, seconds = call_timed(lambda: np.concatenate([decode(part) for part in parts]))
    some = source[:_SCORED]
    written = tokens[:_SCORED, : max(1, int((tokens != config.pad_id).sum(axis=1).max()))]
    read = np.concatenate([np.full_like(written[:, :1], config.start_id), written[:, :-1]], axis=1)
    memory: Any = () if alone else model.encode_source(model.check_source(some))
    scores = np.asarray(model.decode_all(tf.constant(read), memory))
    inputs = {
        "source": some,
        "read": read,
        "written": written,
        "all": source,
        "longest": np.array(longest, np.int32),
    }
    chosen = np.take_along_axis(tf.nn.softmax(scores).numpy(), written[..., None], axis=-1)[..., 0]
    probabilities = np.where(written == config.pad_id, 0, chosen)
    answers = {"scores": scores, "probabilities": probabilities, "tokens": tokens}
    return Samples(inputs, answers, len(source), seconds)


def _draw(model: Any, program: Program) -> dict[str, NDArray[Any]]:
    """Return random inputs: floats, ids below the size of the smallest vocabulary, masks that hide the ends of rows."""
    random = np.random.default_rng(0)
    if "source" not in program.inputs and isinstance(model, Decodable):
        # Only the number of rows matters to a language model.
        return {"source": np.zeros((1, 1), np.int32)}
    size, found = _smallest_vocabulary(model), {}
    for name, spec in program.inputs.items():
        shape = [_ROWS, *(_LENGTH if n is None else n for n in spec.shape[1:])]
        ends = random.integers(1, shape[-1] + 1, (_ROWS, *[1] * (len(shape) - 1)))
        real = np.broadcast_to(np.arange(shape[-1]) < ends, shape)
        x: NDArray[Any]
        if spec.dtype.is_floating:
            x = random.normal(size=shape)
        elif spec.dtype.is_bool or "mask" in name:
            x = real
        else:
            x = np.where(real, random.integers(min(4, size - 1), size, shape), 0)
        found[name] = np.asarray(x, spec.dtype.as_numpy_dtype)
    return found


def _smallest_vocabulary(model: Any) -> int:
    """Return the size of the smallest vocabulary of a model, 2 if it has none."""
    names = ("input_dim", "vocabulary_size")
    found = (getattr(layer, name, None) for layer in model._flatten_layers() for name in names)
    return min((size for size in found if isinstance(size, int)), default=2)
