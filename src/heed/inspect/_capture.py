"""`Capture`: the attention weights of a model by layer, with statistics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.config import one_of
from heed.inspect import _names
from heed.inspect._residual import Residual
from heed.inspect._row_statistics import Floats, RowStatistics, compute_statistics
from heed.npz import read_npz

Integers = NDArray[np.int64]

KINDS = ("self", "causal", "cross")
_FORMAT = "heed capture 1"


class Capture:
    """Attention weights by layer name, in the order in which the model ran the layers.

    `heed.inspect.capture` makes one from a model. The constructor makes one from plain arrays, so that plots, measures
    and the page work with weights from anywhere. A capture is immutable, and its arrays are read-only.

    The picture of a layer is whole, holds some rows of some heads, or is pooled. In a pooled picture, a cell stands for
    `cells[name]` queries and keys: its weight is the sum over its keys, averaged over those of its queries that attend
    to any key, so rows still sum to 1 or 0. Entropy, distance and shares always describe the weights themselves, for
    all T queries.

    Args:
        weights: the weights or the picture, floating-point (B, N, T, S) by layer name; N and T count the captured
            heads and rows.
        kinds: "self", "causal" (self-attention that sees no later key) or "cross", by layer name.
        heads: the head numbers along the second axis, by layer name. Default: 0, 1, ...
        rows: the query positions along the third axis, by layer name. Default: all, or the first of each cell.
        starts: the key position of query 0, an integer or one for each entry of the batch (B,), by layer name.
            Default: 0.
        lengths: the real (T, S) by layer name. Default: the shape of the weights. If it differs from the shape and no
            rows are given, the picture is pooled.
        statistics: a `RowStatistics` of all T queries by layer name. Default: computed, which needs all weights.
        outputs: the outputs of the model, or None. They are not saved.
        residual: a `Residual` of the run. Default: one without places.

    Attributes:
        names: the names of the layers, a tuple.
        weights, kinds, heads, rows, lengths, starts, outputs, residual: the arguments, with defaults filled in.
        cells: how many queries and keys one weight stands for, by layer name; (1, 1) unless pooled.
        entropy: -sum_j w_ij ln w_ij, in nats, (B, N, T) by layer name.
        distance: sum_j w_ij |start + i - j|, in positions, (B, N, T) by layer name.

    Raises:
        ValueError, TypeError: if arrays do not fit each other.

    Example:
        >>> import numpy as np
        >>> first = np.zeros((1, 2, 3, 3), "float32")
        >>> first[..., 0] = 1  # each token attends to the first one
        >>> capture = Capture({"block_1/attention": first}, {"block_1/attention": "self"})
        >>> capture
        <Capture of 1 layer
          block_1/attention: self, 1 x 2 heads x 3 x 3>
        >>> capture.distance["block_1/attention"][0, 0].tolist()
        [0.0, 1.0, 2.0]
        >>> capture.on_token(0)["block_1/attention"][0, 0].tolist()
        [1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        weights: Mapping[str, Any],
        kinds: Mapping[str, str],
        *,
        heads: Mapping[str, Sequence[int]] | None = None,
        rows: Mapping[str, Sequence[int]] | None = None,
        lengths: Mapping[str, tuple[int, int]] | None = None,
        starts: Mapping[str, Any] | None = None,
        statistics: Mapping[str, RowStatistics] | None = None,
        outputs: Any = None,
        residual: Residual | None = None,
    ) -> None:
        if set(kinds) != set(weights):
            raise ValueError(
                "`kinds` must name the layers of `weights`. "
                f"Received: kinds of {sorted(kinds)}, weights of {sorted(weights)}"
            )
        options: dict[str, Mapping[str, Any]] = {
            "heads": heads or {},
            "rows": rows or {},
            "lengths": lengths or {},
            "starts": starts or {},
            "statistics": statistics or {},
        }
        for option, given in options.items():
            if unknown := set(given) - set(weights):
                raise ValueError(
                    f"`{option}` must name layers of `weights`, {sorted(weights)}. Received: {sorted(unknown)}"
                )
        layers = []
        for name, x in weights.items():
            own = {key: by.get(name) for key, by in options.items()}
            layers.append(CapturedLayer(name, x, kinds[name], **own))
        self._set_layers(layers, outputs, residual)

    @classmethod
    def _of(
        cls,
        layers: Iterable[CapturedLayer],
        outputs: Any = None,
        residual: Residual | None = None,
    ) -> Capture:
        """Return a capture of layers that have been checked."""
        capture = cls.__new__(cls)
        capture._set_layers(layers, outputs, residual)
        return capture

    def _set_layers(
        self, layers: Iterable[CapturedLayer], outputs: Any, residual: Residual | None
    ) -> None:
        self._layers = {layer.name: layer for layer in layers}
        self.residual = Residual({}, {}) if residual is None else residual
        if not self._layers and not self.residual:
            raise ValueError("`weights` must hold at least one layer. Received: weights={}")
        self.names: tuple[str, ...] = tuple(self._layers)
        self.weights: Mapping[str, Floats] = self._by_layer(lambda layer: layer.weights)
        self.kinds: Mapping[str, str] = self._by_layer(lambda layer: layer.kind)
        self.heads: Mapping[str, tuple[int, ...]] = self._by_layer(lambda layer: layer.heads)
        self.rows: Mapping[str, tuple[int, ...]] = self._by_layer(lambda layer: layer.rows)
        self.lengths: Mapping[str, tuple[int, int]] = self._by_layer(lambda layer: layer.lengths)
        self.cells: Mapping[str, tuple[int, int]] = self._by_layer(lambda layer: layer.cells)
        self.starts: Mapping[str, Integers] = self._by_layer(lambda layer: layer.starts)
        self.outputs = outputs

    def _by_layer(self, read: Callable[[CapturedLayer], Any]) -> Mapping[str, Any]:
        return MappingProxyType({name: read(layer) for name, layer in self._layers.items()})

    def is_whole(self, name: str) -> bool:
        """Return whether the capture holds a weight for each query and key of the layer."""
        return self._layers[name].whole

    @property
    def entropy(self) -> Mapping[str, Floats]:
        """The entropy of each query, (B, N, T), by layer."""
        return self._by_layer(lambda layer: layer.statistics.entropy)

    @property
    def distance(self) -> Mapping[str, Floats]:
        """The mean distance of each query, (B, N, T), by layer."""
        return self._by_layer(lambda layer: layer.statistics.distance)

    def on_token(self, token: int) -> Mapping[str, Floats]:
        """Return the weight that each query gives one key, (B, N, T) by layer name.

        Args:
            token: the position of the key, >= 0. Layers with fewer keys are left out.

        Raises:
            ValueError: if no layer has such a key, or if a picture is not whole and the key was not among the
                `tokens` of the capture.
        """
        longest = max((length for _, length in self.lengths.values()), default=0)
        token = _names.check_index("token", token, longest)
        return MappingProxyType(
            {
                name: layer.get_share("tokens", token)
                for name, layer in self._layers.items()
                if token < layer.lengths[1]
            }
        )

    def on_offset(self, offset: int) -> Mapping[str, Floats]:
        """Return the weight that each query gives the key at its own position plus `offset`, (B, N, T) by layer name.

        Args:
            offset: -1 for the previous token, 0 for the token itself, 1 for the next one. The weight is 0 where no
                key has this position.

        Raises:
            ValueError: if a picture is not whole and the offset is not -1, 0 or 1, which are always captured.
        """
        offset = _names.to_integer("offset", offset)
        return self._by_layer(lambda layer: layer.get_share("offsets", offset))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.weights

    def __repr__(self) -> str:
        lines = [f"<Capture of {len(self)} layer{'' if len(self) == 1 else 's'}"]
        lines += [f"  {layer!r}" for layer in self._layers.values()]
        if self.residual:
            count = len(self.residual)
            lines.append(f"  and {count} place{'' if count == 1 else 's'} of the residual stream")
        return "\n".join(lines) + ">"

    def check_layer(self, name: str) -> str:
        """Return the name if the capture has this layer.

        Raises:
            ValueError: if it does not; the message lists the layers.
        """
        return one_of(self.names).check("layer", name)

    def head_index(self, name: str, head: int) -> int:
        """Return the index of a head along the second axis of the layer's weights.

        Raises:
            ValueError: if the layer or the head does not exist; the message lists those that do.
        """
        heads = self.heads[self.check_layer(name)]
        if isinstance(head, bool) or head not in heads:
            raise ValueError(
                f"`head` must be one of {', '.join(map(str, heads))} of {name!r}. "
                f"Received: head={head!r}"
            )
        return heads.index(head)

    def select_row(self, row: int, names: Sequence[str] | None = None) -> Capture:
        """Return a capture of one query, without outputs and stream, with the statistics of all queries.

        Args:
            row: the query, in [0, T).
            names: which layers. Default: all.

        Raises:
            ValueError: if a layer does not exist, is pooled, or has been captured without this row.
        """
        layers = []
        for name in self.names if names is None else names:
            layer = self._layers[self.check_layer(name)]
            if layer.cells != (1, 1) or row not in layer.rows:
                held = "a pooled picture" if layer.cells != (1, 1) else f"rows {layer.rows}"
                raise ValueError(
                    "`row` must have been captured: name it in rows=[...], or capture all (size=None). "
                    f"Received: row={row} for {name!r}, which holds {held}"
                )
            at = layer.rows.index(row)
            layers.append(
                CapturedLayer(
                    name,
                    layer.weights[:, :, at : at + 1],
                    layer.kind,
                    heads=layer.heads,
                    rows=[row],
                    lengths=layer.lengths,
                    starts=layer.starts,
                    statistics=layer.statistics if layer.whole else layer._statistics,
                )
            )
        return Capture._of(layers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the outputs to one .npz file, which plain NumPy can read.

        Args:
            path: the file; an existing one is replaced.

        Raises:
            OSError: if the file cannot be written.

        >>> import numpy as np, os, tempfile
        >>> capture = Capture({"a": np.full((1, 1, 2, 2), 0.5)}, {"a": "self"})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     capture.save(os.path.join(folder, "weights.npz"))
        ...     Capture.load(os.path.join(folder, "weights.npz")).names
        ('a',)
        """
        entries: dict[str, Any] = {"format": np.array(_FORMAT), "names": np.array(self.names)}
        for number, layer in enumerate(self._layers.values()):
            entries |= {f"{number}/{part}": x for part, x in layer.to_arrays().items()}
        if self.residual:
            entries |= {f"residual/{part}": x for part, x in self.residual.to_arrays().items()}
        # NumPy would append .npz to a name.
        with open(path, "wb") as file:
            np.savez(file, **entries)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Capture:
        """Read a file that `save` wrote. Nothing in it is executed.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if the file is of another format or damaged.
        """
        try:
            entries = read_npz(path)
            if "format" not in entries:
                raise ValueError("it has no format entry of a heed capture")
            if str(entries["format"]) != _FORMAT:
                raise ValueError(f"its format is {str(entries['format'])!r}, not {_FORMAT!r}")
            layers = [
                CapturedLayer.from_arrays(str(name), _select_part(entries, f"{number}/"))
                for number, name in enumerate(entries["names"])
            ]
            stream = _select_part(entries, "residual/")
            return cls._of(layers, residual=Residual.from_arrays(stream) if stream else None)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ValueError(
                f"`path` must be a file that Capture.save wrote. Received: {os.fspath(path)!r}: {error}"
            ) from error


def select_weights(
    capture: Capture, name: str, heads: Sequence[int] | None, example: int
) -> Floats:
    """Return the weights of some or all heads of a layer for one entry of the batch, (heads, rows, columns)."""
    weights = capture.weights[capture.check_layer(name)]
    number = _names.check_index("example", example, len(weights), f", the batch of {name!r}")
    chosen = slice(None) if heads is None else [capture.head_index(name, head) for head in heads]
    return weights[number, chosen]


class CapturedLayer:
    """One layer of a `Capture`; its arguments are checked."""

    def __init__(
        self,
        name: str,
        weights: Any,
        kind: str,
        heads: Sequence[int] | None = None,
        rows: Sequence[int] | None = None,
        lengths: tuple[int, int] | None = None,
        starts: Any = None,
        statistics: RowStatistics | None = None,
    ) -> None:
        array = np.asarray(weights)
        if array.ndim != 4 or array.dtype.kind != "f":
            raise ValueError(
                "`weights` must be floating-point arrays (B, N, T, S). "
                f"Received: {array.dtype} of shape {array.shape} for {name!r}"
            )
        if kind not in KINDS:
            raise ValueError(f"`kinds` must be one of {KINDS}. Received: {kind!r} for {name!r}")
        self.name, self.kind = name, kind
        self.weights: Floats = array.view()  # leaves the caller's array writable
        self.weights.flags.writeable = False
        B, N, *size = array.shape
        T, S = (int(n) for n in (size if lengths is None else lengths))
        self.lengths = T, S
        self._limited = rows is not None and (len(rows) != T or tuple(rows) != tuple(range(T)))
        self.cells = _cell_sizes(name, self.lengths, (T, size[1]) if self._limited else tuple(size))
        self.whole = not self._limited and self.cells == (1, 1)
        self.heads = _check_labels("heads", name, range(N) if heads is None else heads, N, None)
        default = range(0, T, self.cells[0])
        self.rows = _check_labels("rows", name, default if rows is None else rows, size[0], T)
        start = np.atleast_1d(np.asarray(0 if starts is None else starts))
        if start.dtype.kind not in "iu" or start.shape not in ((1,), (B,)):
            raise ValueError(
                f"`starts` must be an integer, or {B} of them, for {name!r}. Received: starts={starts!r}"
            )
        self.starts: Integers = start.astype(np.int64)
        self._statistics = statistics
        parts = {} if statistics is None else statistics.to_arrays()
        for part, x in parts.items():
            if np.shape(x) != (B, N, T):
                raise ValueError(
                    f"`statistics` of {name!r} must have the shape (B, N, T) = {(B, N, T)}. "
                    f"Received: {part} of shape {np.shape(x)}"
                )

    @property
    def statistics(self) -> RowStatistics:
        """The statistics of all T queries, computed on first use."""
        if self._statistics is None:
            self._statistics = self._compute("statistics")
        return self._statistics

    def get_share(self, kind: str, which: int) -> Floats:
        """Return the statistic "tokens" or "offsets" of one token or offset."""
        if which not in getattr(self.statistics, kind):
            added = self._compute(f"{kind[:-1]} {which}", **{kind: (which,)})
            self._statistics = self.statistics.merge(added)
        return getattr(self.statistics, kind)[which]

    def _compute(self, wanted: str, **chosen: Sequence[int]) -> RowStatistics:
        """Compute statistics of a whole picture; raise an error that names `wanted` for any other."""
        if not self.whole:
            part = "of some rows only" if self._limited else "pooled"
            raise ValueError(
                f"The {wanted} of {self.name!r} must have been captured: name it in capture(..., tokens=[...]), or "
                f"capture the layer whole (size=None). Received: a picture that is {part}"
            )
        places = np.arange(self.lengths[0]) + self.starts.reshape((-1, 1, 1))
        return compute_statistics(self.weights, places, **chosen)

    def __repr__(self) -> str:
        B, N, *size = self.weights.shape
        T, S = self.lengths
        held = ""
        if self.cells != (1, 1):
            held = f", pooled to {size[0]} x {size[1]}"
        elif self._limited:
            held = f", {size[0]} row{'s' if size[0] != 1 else ''} of it"
        return f"{self.name}: {self.kind}, {B} x {N} heads x {T} x {S}{held}"

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a file."""
        arrays = {
            "kind": np.array(self.kind),
            "weights": self.weights,
            "heads": np.array(self.heads, np.int64),
            "lengths": np.array(self.lengths, np.int64),
            "starts": self.starts,
        }
        if self._limited:
            arrays["rows"] = np.array(self.rows, np.int64)
        if self.whole or self._statistics is not None:
            arrays |= self.statistics.to_arrays()
        return arrays

    @classmethod
    def from_arrays(cls, name: str, arrays: Mapping[str, NDArray[Any]]) -> CapturedLayer:
        """Return the inverse of `to_arrays`."""
        rest = dict(arrays)
        weights, starts, kind = rest.pop("weights"), rest.pop("starts"), str(rest.pop("kind"))
        lists = {key: rest.pop(key).tolist() for key in ("heads", "lengths", "rows") if key in rest}
        statistics = RowStatistics.from_arrays(rest) if rest else None
        return cls(name, weights, kind, starts=starts, statistics=statistics, **lists)


def _select_part(entries: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): x for key, x in entries.items() if key.startswith(prefix)}


def _check_labels(
    option: str, name: str, given: Sequence[int], count: int, limit: int | None
) -> tuple[int, ...]:
    labels = tuple(map(int, given))
    if len(labels) != count or min(labels, default=0) < 0 or len(set(labels)) != count:
        raise ValueError(
            f"`{option}` must be {count} different integers >= 0, one for each of the {option} of {name!r}. "
            f"Received: {option}={labels}"
        )
    if limit is not None and max(labels, default=0) >= max(limit, 1):
        raise ValueError(
            f"`{option}` must be in [0, {limit}) for {name!r}. Received: {option}={labels}"
        )
    return labels


def _cell_sizes(name: str, length: tuple[int, int], size: tuple[int, ...]) -> tuple[int, int]:
    """Return how many queries and keys one weight stands for."""
    T, S = (max(1, -(-n // max(1, k))) for n, k in zip(length, size, strict=True))
    if size != (-(-length[0] // T), -(-length[1] // S)):
        raise ValueError(
            "`lengths` must be the (T, S) of the weights, or those that equal cells were pooled from. "
            f"Received: lengths={length} for {name!r}, whose weights are {size[0]} x {size[1]}"
        )
    return T, S
