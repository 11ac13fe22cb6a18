"""What is made of a model, such as compiled programs, kept for the next call while its structure is unchanged."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import keras

from heed.ops.backends import current
from heed.ops.dispatch import get_implementation

_MOST = 8  # things kept of a model, those that were used last

Function = Callable[[Any, dict[str, Any], dict[str, Any]], Any]


@dataclass
class _Kept:
    """What is kept of one model, the latest last."""

    state: _State | None = None
    by_key: dict[Hashable, Any] = field(default_factory=dict)


# A process that forks waits for other threads to release it: its child would find it closed for ever.
_lock = threading.RLock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
_kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()


def keep(model: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """Return `make()`, once for each key until the layers, variables or dtype policies of the model change.

    The model is built, and `make` returns something that does not hold it, which would keep it alive. The key is
    whatever else the result depends on.
    """
    with _lock:
        kept = _kept.setdefault(model, _Kept())
        if kept.state is None or not kept.state.is_of(model):
            kept.by_key.clear()
            kept.state = _State(model)
        found = kept.by_key.pop(key, None)
        if found is None:
            found = make()
        kept.by_key[key] = found
        if len(kept.by_key) > _MOST:
            del kept.by_key[next(iter(kept.by_key))]
        return found


def program(
    model: Any, options: dict[str, Any], function: Function, quick: bool = False
) -> Callable[[Any], Any]:
    """Return `function(model, inputs, options)` compiled as a function of the inputs.

    The options are everything that the function depends on besides the built model and its inputs; it is a function of
    a module. If it is `quick` uncompiled, it is compiled at its second use.
    """
    # A strong reference would keep every model alive.
    reference = weakref.ref(model)

    def make() -> Callable[[Any], Any]:
        compile_ = current().compile_graph_when_repeated if quick else current().compile_graph
        return compile_(
            lambda inputs: function(reference(), inputs, options),
            lambda: [x for part in _parts(reference()) for x in part.variables],
        )

    return keep(model, (function, get_implementation(), *options.items()), make)


class _State:
    """The parts of a model that a traced program holds: its layers, their variables and dtype policies.

    LoRA and quantisation change variables or their use; a policy changes dtypes. Each call compares it, so it reads the
    lists of a layer: Keras' public properties of them take longer than a short decoding.
    """

    def __init__(self, model: Any) -> None:
        parts = _parts(model)
        nested = (x._flatten_layers() if isinstance(x, keras.layers.Layer) else [x] for x in parts)
        layers = {id(x): x for several in nested for x in several}
        self._seen = [(weakref.ref(layer), _contents(layer)) for layer in layers.values()]
        self._parts = [*map(id, parts)]
        # Held, so that no other variable gets the address of one that is gone. The programs hold them, too.
        self._variables = [x for part in parts for x in part.variables]

    def is_of(self, model: Any) -> bool:
        """Return whether the model is as it was."""
        return [*map(id, _parts(model))] == self._parts and all(
            (layer := reference()) is not None and _contents(layer) == contents
            for reference, contents in self._seen
        )


def _parts(model: Any) -> list[Any]:
    """Return the model and the blocks of its stacks: Keras does not notice a layer that replaces another in a list."""
    found = [getattr(getattr(model, name, None), "blocks", ()) for name in ("encoder", "decoder")]
    layers = [x for blocks in found if isinstance(blocks, list) for x in blocks]
    return [model, *(x for x in layers if isinstance(x, keras.layers.Layer))]


def _contents(layer: Any) -> tuple[Any, ...]:
    if not isinstance(layer, keras.layers.Layer):  # a model of another kind
        return tuple(map(id, layer.variables))
    return (
        layer.dtype_policy.name,
        *map(id, layer._layers),
        *map(id, layer._trainable_variables),
        *map(id, layer._non_trainable_variables),
    )
