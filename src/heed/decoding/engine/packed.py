"""The packed weights of a model and its tables of positions, kept while the weights are the same."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any

from heed.decoding.engine.describe import (
    describe_decoder,
    describe_positions,
    describe_stack,
)
from heed.ops.backends import current
from heed.ops.core.decoder import PackedDecoder
from heed.ops.core.description import Positions, map_tensors

_MOST_TABLES = 64

# A process that forks waits until no other thread packs weights: its child would find the lock closed for ever.
_lock = threading.Lock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


@dataclass(frozen=True)
class Version:
    """The weights of a model at one time.

    Attributes:
        number: see `Backend.weights_version`.
        tensors: held, so that no other weights get their addresses.
        decoder: the packed weights.
    """

    number: Any
    tensors: list[Any]
    decoder: PackedDecoder
    _tables: dict[Any, Positions] = field(default_factory=dict)

    def positions(self, stack: Any, *sizes: int) -> Positions:
        """Return `describe_positions(stack, *sizes)` as arrays, for a stack of the model."""
        key = (type(stack), *sizes)
        found = self._tables.get(key)
        if found is None:
            found = map_tensors(describe_positions(stack, *sizes), current().to_array)
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            self._tables[key] = found
        return found


class PackedModel:
    """The engine of one model, as long as its layers and variables are the same.

    It holds the variables of the model, not the model.

    Args:
        model: that the engine decodes.
        weights: the format of dense layers' weights.
        encodes: whether the engine encodes the sources.
    """

    def __init__(self, model: Any, weights: str, encodes: bool) -> None:
        self._decoder = describe_decoder(model.decoder, weights)
        self._encoder = describe_stack(model.encoder, weights) if encodes else None
        # Tables of positions are made from the embeddings' variables.
        stacks = (model.decoder, model.encoder) if encodes else (model.decoder,)
        found = {id(x): x for stack in stacks for x in stack.embedding.variables}
        map_tensors((self._decoder, self._encoder), lambda x: found.setdefault(id(x), x))
        self._variables = list(found.values())
        self._read = current().make_reader(self._variables)
        self._packed: Version | None = None

    def version(self) -> Version:
        """Return the weights of now, packed if they have changed."""
        backend, tensors = current(), self._read()
        number = backend.weights_version(tensors)
        with _lock:
            if self._packed is None or self._packed.number != number:
                self._packed = None  # first, so that two versions need not be in memory at once
                arrays = dict(zip(map(id, self._variables), tensors, strict=True))
                stacks = map_tensors(
                    (self._decoder, self._encoder), lambda x: backend.to_array(arrays[id(x)])
                )
                self._packed = Version(number, tensors, PackedDecoder(*stacks), {})
            return self._packed
