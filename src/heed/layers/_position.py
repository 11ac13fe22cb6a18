"""What `position` of `MultiHeadAttention` may be: a name, or a name with options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heed.ops.rotary_scaling import check_scaling, depends_on_length

# The options of each kind, with their defaults: those of `rotary_embedding` and of `RelativePositionBias`.
_KINDS: dict[str, dict[str, Any]] = {
    "rotary": {
        "max_wavelength": 10000.0,
        "scaling_factor": 1.0,
        "scaling": None,
        "interleaved": False,
    },
    "alibi": {},
    "relative": {"num_buckets": 32, "max_distance": 128, "bidirectional": True},
}


def resolve(position: Any, key_dim: int) -> dict[str, Any] | None:
    """All options of a position, with its `kind`, or None.

    Raises:
        ValueError: for an unknown kind or option, a scaling that is none, or an odd `key_dim` that cannot be rotated.
    """
    if position is None:
        return None
    given = {"kind": position} if isinstance(position, str) else position
    kind = given.get("kind") if isinstance(given, Mapping) else None
    if kind not in _KINDS:
        raise ValueError(
            f"`position` must be one of {', '.join(_KINDS)}, or a dictionary with such a `kind` and its options. "
            f"Received: position={position!r}"
        )
    unknown = set(given) - {"kind", *_KINDS[kind]}
    if unknown:
        raise ValueError(
            f"`position` of kind {kind!r} has the options {sorted(_KINDS[kind])}. Received: position={position!r}"
        )
    if kind == "rotary" and key_dim % 2:
        raise ValueError(
            f"`key_dim` must be even where `position` rotates pairs. Received: key_dim={key_dim}"
        )
    resolved = {**_KINDS[kind], **given}
    if kind == "rotary":
        resolved["scaling"] = check_scaling(resolved["scaling"])
    return resolved


def options(position: dict[str, Any] | None, kind: str) -> dict[str, Any] | None:
    """The options of a resolved position if it is of this kind, else None."""
    if position is None or position["kind"] != kind:
        return None
    return {name: value for name, value in position.items() if name != "kind"}


def rotation_depends_on_length(position: dict[str, Any] | None) -> bool:
    """Whether how far queries and keys are rotated depends on the length of the text."""
    rotary = options(position, "rotary")
    return rotary is not None and depends_on_length(rotary["scaling"])
