"""Rotating projected queries and keys by their positions."""

from __future__ import annotations

from typing import Any

from keras import ops

from heed.layers.shapes import agree
from heed.ops import rotary_embedding


def rotate(x: Any, positions: Any, name: str, options: dict[str, Any]) -> Any:
    """Projected queries or keys (B, T, N, H), rotated by their positions.

    Args:
        x: (B, T, N, H).
        positions: (T,) or (B, T).
        name: the argument that gave the positions, for messages.
        options: of `rotary_embedding`.

    Raises:
        ValueError: if the positions do not fit, or H is odd.
    """
    positions = ops.convert_to_tensor(positions)
    shape, sizes = tuple(positions.shape), tuple(x.shape)
    if not agree(shape, sizes[1:2]) and not agree(shape, sizes[:2]):
        raise ValueError(
            f"`{name}` must have one position for each token, {sizes[1:2]} or {sizes[:2]}; the keys "
            "have those of the queries where `rotary_key_positions` is not given. "
            f"Received: {name}.shape={shape}"
        )
    if sizes[-1] % 2:
        raise ValueError(
            f"`key_dim` must be even, as `{name}` rotate pairs. Received: key_dim={sizes[-1]}"
        )
    return rotary_embedding(x, positions, **options)
