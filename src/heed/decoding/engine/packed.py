"""The packed weights of a model and its tables of positions, kept while the weights are the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heed.decoding.engine.describe import describe_positions
from heed.ops.backends import current
from heed.ops.core.decoder import PackedDecoder
from heed.ops.core.description import DecoderStack, Positions, map_tensors, resolve, variables_of

_MOST_TABLES = 64

# A process that forks waits until no other thread packs weights: its child would find the lock closed for ever.
_lock = threading.Lock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


@dataclass(frozen=True)
class Version:
    """The weights of a model at one time."""

    number: Any  # see `Backend.weights_version`
    # held, so that no other weights get their addresses, and `decoder` may read in their memory
    tensors: list[Any]
    decoder: PackedDecoder  # the packed weights
    tables: tuple[Any, ...]  # the further weights of the model, as arrays
    _positions: dict[Any, Positions] = field(default_factory=dict)

    def positions(self, stack: Any, *sizes: int) -> Positions:
        """Return `describe_positions(stack, *sizes)` as arrays, for a stack of the model."""
        key = (type(stack), *sizes)
        found = self._positions.get(key)
        if found is None:
            found = map_tensors(describe_positions(stack, *sizes), current().to_array)
            if len(self._positions) >= _MOST_TABLES:
                self._positions.clear()
            self._positions[key] = found
        return found


class PackedModel:
    """The engine of one model, as long as its layers and variables are the same.

    It holds the variables of the model, not the model. A version is what the variables were when it was asked for: on
    TensorFlow and JAX nobody writes to tensors that others hold. PyTorch trains in place: there a decoding that goes on
    meanwhile reads the new numbers of large float32 weights as they come, see `PackedDecoder`.

    The weights are variables, or what is computed of some. `tables` are further ones, those that tables of positions
    are made of. `check` gets the array of each weight before it is packed, and raises an error to refuse it.
    """

    def __init__(
        self,
        decoder: DecoderStack,
        encoder: DecoderStack | None,
        tables: tuple[Any, ...] = (),
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self._parts, self._check = (decoder, encoder, tables), check
        found: dict[int, Any] = {}
        map_tensors(self._parts, lambda leaf: found.update((id(x), x) for x in variables_of(leaf)))
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
                by_id = dict(zip(map(id, self._variables), tensors, strict=True))

                def read(variable: Any) -> Any:
                    array = backend.to_array(by_id[id(variable)])
                    if self._check is not None:
                        self._check(array)
                    return array

                # What is computed may lie in another order, and the core reads numbers one after the other.
                def lay_out(leaf: Any) -> Any:
                    array = resolve(leaf, read)
                    return np.ascontiguousarray(
                        array, np.int8 if array.dtype == np.int8 else np.float32
                    )

                decoder, encoder, tables = map_tensors(self._parts, lay_out)
                packed = PackedDecoder(decoder, encoder)
                self._packed = Version(number, tensors, packed, tables, {})
            return self._packed
