"""How a multi-head layer knows the positions of its tokens: rotated queries and keys, slopes, or a learned bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from heed.layers._head_widths import HeadWidths
from heed.layers._positions import RelativePositionBias
from heed.layers.shapes import agree
from heed.ops import alibi_slopes as slopes_of_alibi
from heed.ops import rotary_embedding
from heed.ops.rotary_scaling import check_scaling, depends_on_length

# The options of each kind, with the defaults of `rotary_embedding` and `RelativePositionBias`.
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


class HeadPositions:
    """The positions of a layer's heads: those of its `position` option, and those given to a call.

    Args:
        position: see `MultiHeadAttention`.
        num_heads: N.
        key_widths: the widths H of the query and key heads.
        rotary_base: of the rotation, unless `position` has a `max_wavelength`.
        rotary_dim: how many features are rotated, the first ones; None: all H.

    Attributes:
        options: all options of `position`, with its `kind`, or None.
    """

    def __init__(
        self,
        position: Any,
        num_heads: int,
        key_widths: HeadWidths,
        rotary_base: float = 10_000.0,
        rotary_dim: int | None = None,
    ) -> None:
        if rotary_dim is not None and rotary_dim > min(key_widths.each):
            raise ValueError(
                "`rotary_dim` must be at most `key_dim`, the features of a head. "
                f"Received: rotary_dim={rotary_dim}, key_dim={min(key_widths.each)}"
            )
        self._turned = key_widths.widest if rotary_dim is None else rotary_dim
        self._base = {"max_wavelength": rotary_base}
        self.options = _resolve(position, self._turned, self._base)
        self._num_heads, self._key_widths = num_heads, key_widths
        self._bias: RelativePositionBias | None = None

    def of_kind(self, kind: str) -> dict[str, Any] | None:
        """Return the options of `position` if it is of this kind, else None."""
        if self.options is None or self.options["kind"] != kind:
            return None
        return {name: value for name, value in self.options.items() if name != "kind"}

    def make_bias(self, **options: Any) -> RelativePositionBias | None:
        """Return the built bias of relative positions, or None for other kinds."""
        relative = self.of_kind("relative")
        if relative is not None:
            self._bias = RelativePositionBias(self._num_heads, **relative, **options)
            self._bias.build()
        return self._bias

    @property
    def depend_on_length(self) -> bool:
        """Whether the rotation depends on the length of the text."""
        rotary = self.of_kind("rotary")
        return rotary is not None and depends_on_length(rotary["scaling"])

    def text_length(self, query: Any, key: Any, positions: Any, key_positions: Any) -> Any:
        """Return the length of the text if the rotation of its queries and keys depends on it, else None."""
        if not self.depend_on_length:
            return None
        lengths = [
            ops.shape(x)[1] if given is None else ops.max(ops.convert_to_tensor(given)) + 1
            for x, given in ((query, positions), (key, key_positions))
        ]
        return ops.maximum(*lengths)

    def rotate(self, x: Any, positions: Any, start: Any, length: Any, name: str) -> Any:
        """Return heads (B, T, N, H) rotated by their positions, (T,) or (B, T) integers.

        Positions of None are `start`, `start + 1`, ... if `position` is rotary, else nothing is rotated. `length` comes
        from `text_length`; `name` is the argument that holds the positions, for messages.
        """
        rotary = self.of_kind("rotary")
        if positions is None:
            if rotary is None:
                return x
            positions = ops.arange(ops.shape(x)[1], dtype="int32") + start
        positions = ops.convert_to_tensor(positions)
        shape, sizes = tuple(positions.shape), tuple(x.shape)
        if not agree(shape, sizes[1:2]) and not agree(shape, sizes[:2]):
            raise ValueError(
                f"`{name}` must have one position for each token, {sizes[1:2]} or {sizes[:2]}; the keys "
                "have those of the queries where `rotary_key_positions` is not given. "
                f"Received: {name}.shape={shape}"
            )
        widths, turned = self._key_widths, self._turned
        if not widths.equal or turned % 2:
            raise ValueError(
                f"`key_dim` must be one even number, as `{name}` rotate pairs. "
                f"Received: key_dim={widths.widest if widths.equal else widths.each}"
            )
        if not turned:
            return x
        options = {**self._base, **(rotary or {}), "length": length}
        if turned == widths.widest:
            return rotary_embedding(x, positions, **options)
        first = rotary_embedding(x[..., :turned], positions, **options)
        return ops.concatenate([first, x[..., turned:]], axis=-1)

    def score_terms(
        self, queries: Any, keys: Any, start: Any, position_bias: Any, alibi_slopes: Any
    ) -> dict[str, Any]:
        """Return the bias and slopes of the scores, given or from `position`; only those that there are."""
        if self._bias is not None:
            bias = self._bias(
                query_length=ops.shape(queries)[1],
                key_length=ops.shape(keys)[1],
                start_index=start,
            )
            position_bias = bias if position_bias is None else position_bias + bias
        if self.of_kind("alibi") is not None and alibi_slopes is None:
            alibi_slopes = slopes_of_alibi(self._num_heads)
        terms = {"position_bias": position_bias, "alibi_slopes": alibi_slopes}
        return {name: value for name, value in terms.items() if value is not None}


def _resolve(position: Any, key_dim: int, base: dict[str, Any]) -> dict[str, Any] | None:
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
        resolved = {**resolved, **base, **given}
        resolved["scaling"] = check_scaling(resolved["scaling"])
    return resolved
