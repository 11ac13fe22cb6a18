"""Values attached to tensors, which later functions find again."""

from __future__ import annotations

import weakref
from typing import Any

# Of tensors without attributes, as those of JAX: the values by the name of the note and the tensor's id.
_by_id: dict[str, dict[int, Any]] = {}


def attach(x: Any, name: str, value: Any) -> None:
    """Attach a value to a tensor, under a name."""
    try:
        setattr(x, name, value)
    except AttributeError:
        notes = _by_id.setdefault(name, {})
        if id(x) not in notes:
            weakref.finalize(x, notes.pop, id(x), None)
        notes[id(x)] = value


def read(x: Any, name: str, default: Any = None) -> Any:
    """Return the value that is attached to a tensor under this name, or the default."""
    found = getattr(x, name, None)
    return _by_id.get(name, {}).get(id(x), default) if found is None else found
