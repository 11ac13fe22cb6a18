"""`Capture`: the attention weights of a model, layer by layer, and what they amount to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed._npz import read_npz
from heed.inspect import _names
from heed.inspect._statistics import RowStatistics, statistics_of

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]

KINDS = ("self", "causal", "cross")
_FORMAT = "heed capture 1"
_PARTS = ("kind", "weights", "heads", "lengths", "starts")


class Capture:
    """Attention weights by layer name, in the order in which the model ran the layers.

    `heed.inspect.capture` makes one from a model; the constructor makes one from plain arrays, so that the pictures,
    the measures and the page serve weights from anywhere. It never changes, and its arrays are read-only.

    A layer's picture is whole, or holds some rows of some heads, or is pooled: then each cell stands for `cells[name]`
    queries and keys, a weight is the mean over the cell's queries (over those that attend to something) of the sum
    over its keys, and rows sum to 1 or 0 as ever. Entropy, distance and shares are of the weights themselves, for all
    T queries, whatever the picture holds.

    Args:
        weights: by layer name (B, N, T, S), floating-point, the weights or the picture; N and T count what is held.
        kinds: by layer name "self", "causal" (self-attention that sees no later key) or "cross".
        heads: by layer name which heads the second axis is. Default: 0, 1, ...
        rows: by layer name which queries the third axis is. Default: all, or the first of each cell.
        starts: by layer name at which key position query 0 stands, an integer or one for each entry of the batch, (B,).
            Default: 0.
        lengths: by layer name the real (T, S). Default: the shape of the weights. Where it differs from that and no
            rows are given, the picture is pooled.
        statistics: by layer name a `RowStatistics` of all T queries. Default: computed, which takes all the weights.
        outputs: what the model returned, or None. It is not saved.

    Attributes:
        names: of the layers, a tuple.
        weights, kinds, heads, rows, lengths, starts, outputs: as given, complete.
        cells: by layer name how many queries and keys one weight stands for, (1, 1) where it is not pooled.
        entropy: by layer name (B, N, T), -sum_j w_ij ln w_ij, in nats.
        distance: by layer name (B, N, T), sum_j w_ij |start + i - j|, in positions.

    Raises:
        ValueError, TypeError: for arrays that do not fit each other.

    Example:
        >>> import numpy as np
        >>> first = np.zeros((1, 2, 3, 3), "float32")
        >>> first[..., 0] = 1  # each token looks at the first one
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
    ) -> None:
        arrays = {name: _weights(name, x) for name, x in weights.items()}
        if not arrays:
            raise ValueError("`weights` must hold at least one layer. Received: weights={}")
        if set(kinds) != set(arrays):
            raise ValueError(
                "`kinds` must name the layers of `weights`. "
                f"Received: kinds of {sorted(kinds)}, weights of {sorted(arrays)}"
            )
        for option, given in (
            ("heads", heads),
            ("rows", rows),
            ("lengths", lengths),
            ("starts", starts),
        ):
            _known(option, given, arrays)
        _known("statistics", statistics, arrays)
        self.names: tuple[str, ...] = tuple(arrays)
        self.weights: Mapping[str, Floats] = MappingProxyType(arrays)
        self.outputs = outputs
        kept_kinds, kept_heads, kept_rows, kept_lengths, cells, limited = {}, {}, {}, {}, {}, set()
        for name, x in arrays.items():
            if kinds[name] not in KINDS:
                raise ValueError(
                    f"`kinds` must be one of {KINDS}. Received: {kinds[name]!r} for {name!r}"
                )
            kept_kinds[name] = kinds[name]
            size = x.shape[2:]
            T, S = (int(n) for n in (lengths or {}).get(name, size))
            chosen = (rows or {}).get(name)
            if chosen is not None and (len(chosen) != T or tuple(chosen) != tuple(range(T))):
                limited.add(name)
                size = (T, size[1])
            kept_lengths[name] = (T, S)
            cells[name] = _cell(name, (T, S), size)
            kept_heads[name] = _labels("heads", name, (heads or {}).get(name), x.shape[1], None)
            default = range(0, T, cells[name][0]) if chosen is None else chosen
            kept_rows[name] = _labels("rows", name, default, x.shape[2], T)
        self.kinds: Mapping[str, str] = MappingProxyType(kept_kinds)
        self.heads: Mapping[str, tuple[int, ...]] = MappingProxyType(kept_heads)
        self.rows: Mapping[str, tuple[int, ...]] = MappingProxyType(kept_rows)
        self.lengths: Mapping[str, tuple[int, int]] = MappingProxyType(kept_lengths)
        self.cells: Mapping[str, tuple[int, int]] = MappingProxyType(cells)
        self.starts: Mapping[str, Integers] = MappingProxyType(
            {name: _start(name, (starts or {}).get(name, 0), len(x)) for name, x in arrays.items()}
        )
        self._limited = frozenset(limited)
        self._statistics = dict(statistics or {})
        for name, found in self._statistics.items():
            found.check(name, (*arrays[name].shape[:2], self.lengths[name][0]))

    def is_whole(self, name: str) -> bool:
        """Whether the layer's weights are there for every query and key, of the heads that were captured."""
        return name not in self._limited and self.cells[name] == (1, 1)

    @property
    def entropy(self) -> Mapping[str, Floats]:
        """See the class."""
        return MappingProxyType({name: self._rows(name).entropy for name in self.names})

    @property
    def distance(self) -> Mapping[str, Floats]:
        """See the class."""
        return MappingProxyType({name: self._rows(name).distance for name in self.names})

    def on_token(self, token: int) -> Mapping[str, Floats]:
        """How much of its weight each query gives one key: by layer name (B, N, T).

        Args:
            token: which key, >= 0. Layers whose key is shorter are left out.

        Raises:
            ValueError: if no layer has such a key; or where the weights are not all there, if the key was not among
                the `tokens` of the capture.
        """
        token = _names.whole("token", token)
        longest = max(length for _, length in self.lengths.values())
        if not 0 <= token < longest:
            raise ValueError(f"`token` must be in [0, {longest}). Received: token={token}")
        return MappingProxyType(
            {
                name: self._share(name, "tokens", token)
                for name in self.names
                if token < self.lengths[name][1]
            }
        )

    def on_offset(self, offset: int) -> Mapping[str, Floats]:
        """How much of its weight query i gives the key at its own position plus `offset`: by layer name (B, N, T).

        Args:
            offset: -1 for the previous token, 0 for the token itself, 1 for the next one. A query whose key at this
                offset does not exist has 0.

        Raises:
            ValueError: where the weights are not all there, if the offset was not captured: -1, 0 and 1 always are.
        """
        offset = _names.whole("offset", offset)
        return MappingProxyType({name: self._share(name, "offsets", offset) for name in self.names})

    def _share(self, name: str, kind: str, which: int) -> Floats:
        """The statistic "tokens" or "offsets" of one token or offset."""
        rows = self._rows(name)
        if which not in getattr(rows, kind):
            weights = self._whole(name, f"{kind[:-1]} {which}")
            added = statistics_of(weights, self._places(name), **{kind: (which,)})
            rows = self._statistics[name] = rows.joined(added)
        return getattr(rows, kind)[which]

    def _rows(self, name: str) -> RowStatistics:
        if name not in self._statistics:
            weights = self._whole(name, "statistics")
            self._statistics[name] = statistics_of(weights, self._places(name))
        return self._statistics[name]

    def _places(self, name: str) -> Integers:
        """At which key position each query stands, (1 or B, 1, T)."""
        return np.arange(self.lengths[name][0]) + self.starts[name].reshape((-1, 1, 1))

    def _whole(self, name: str, wanted: str) -> Floats:
        """All weights of a layer, or an error that says why they do not give what is wanted."""
        if not self.is_whole(name):
            held = "of some rows only" if name in self._limited else "pooled"
            raise ValueError(
                f"The {wanted} of {name!r} must have been captured: name it in capture(..., tokens=[...]), or capture "
                f"the layer whole (size=None). Received: a picture that is {held}"
            )
        return self.weights[name]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.weights

    def __repr__(self) -> str:
        lines = [f"<Capture of {len(self)} layer{'s' if len(self) > 1 else ''}"]
        for name, x in self.weights.items():
            T, S = self.lengths[name]
            line = f"  {name}: {self.kinds[name]}, {x.shape[0]} x {x.shape[1]} heads x {T} x {S}"
            if self.cells[name] != (1, 1):
                line += f", pooled to {x.shape[2]} x {x.shape[3]}"
            elif name in self._limited:
                line += f", {x.shape[2]} row{'s' if x.shape[2] != 1 else ''} of it"
            lines.append(line)
        return "\n".join(lines) + ">"

    def layer(self, name: str) -> str:
        """The name itself, checked.

        Raises:
            ValueError: for a layer that is not there; lists those that are.
        """
        if name not in self.weights:
            raise ValueError(
                f"`layer` must be one of {', '.join(map(repr, self.names))}. Received: layer={name!r}"
            )
        return name

    def head(self, name: str, head: int) -> int:
        """Where the head `head` of the layer `name` stands on the second axis of its weights.

        Raises:
            ValueError: for a layer or head that is not there; lists those that are.
        """
        heads = self.heads[self.layer(name)]
        if isinstance(head, bool) or head not in heads:
            raise ValueError(
                f"`head` must be one of {', '.join(map(str, heads))} of {name!r}. "
                f"Received: head={head!r}"
            )
        return heads.index(head)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything but the outputs into one .npz file, which NumPy alone can read too.

        Args:
            path: of the file; an existing one is replaced.

        Raises:
            OSError: if it cannot be written.

        >>> import numpy as np, os, tempfile
        >>> capture = Capture({"a": np.full((1, 1, 2, 2), 0.5)}, {"a": "self"})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     capture.save(os.path.join(folder, "weights.npz"))
        ...     Capture.load(os.path.join(folder, "weights.npz")).names
        ('a',)
        """
        entries: dict[str, Any] = {"format": np.array(_FORMAT), "names": np.array(self.names)}
        for number, name in enumerate(self.names):
            parts = {
                "kind": self.kinds[name],
                "weights": self.weights[name],
                "heads": np.array(self.heads[name], np.int64),
                "lengths": np.array(self.lengths[name], np.int64),
                "starts": self.starts[name],
            }
            if name in self._limited:
                parts["rows"] = np.array(self.rows[name], np.int64)
            if name in self._statistics or self.is_whole(name):
                parts |= self._rows(name).to_arrays()
            entries |= {f"{number}/{part}": np.asarray(x) for part, x in parts.items()}
        # Given a name, NumPy would add .npz to it.
        with open(path, "wb") as file:
            np.savez(file, **entries)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Capture:
        """Reads what `save` wrote. Nothing in the file is executed.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if it is not such a file, or is damaged.
        """
        try:
            entries = read_npz(path)
            if "format" not in entries:
                raise ValueError("it does not say that it is a capture of heed")
            if str(entries["format"]) != _FORMAT:
                raise ValueError(f"its format is {str(entries['format'])!r}, not {_FORMAT!r}")
            return cls._from_file(entries)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ValueError(
                f"`path` must be a file that Capture.save wrote. Received: {os.fspath(path)!r}: {error}"
            ) from error

    @classmethod
    def _from_file(cls, entries: Mapping[str, Any]) -> Capture:
        names = [str(name) for name in entries["names"]]
        found: dict[str, dict[str, Any]] = {part: {} for part in (*_PARTS, "rows")}
        statistics = {}
        for number, name in enumerate(names):
            prefix = f"{number}/"
            own = {
                key.removeprefix(prefix): x for key, x in entries.items() if key.startswith(prefix)
            }
            for part in _PARTS:
                found[part][name] = own.pop(part)
            found["kind"][name] = str(found["kind"][name])
            found["heads"][name] = tuple(found["heads"][name].tolist())
            found["lengths"][name] = tuple(found["lengths"][name].tolist())
            if "rows" in own:
                found["rows"][name] = tuple(own.pop("rows").tolist())
            if own:
                statistics[name] = RowStatistics.from_arrays(own)
        return cls(
            found["weights"],
            found["kind"],
            heads=found["heads"],
            rows=found["rows"],
            lengths=found["lengths"],
            starts=found["starts"],
            statistics=statistics,
        )


def _weights(name: str, x: Any) -> Floats:
    array = np.asarray(x)
    if array.ndim != 4 or array.dtype.kind != "f":
        raise ValueError(
            "`weights` must be floating-point arrays (B, N, T, S). "
            f"Received: {array.dtype} of shape {array.shape} for {name!r}"
        )
    return _frozen(array)


def _frozen(array: Floats) -> Floats:
    """A read-only view; the caller's own array stays as it is."""
    view = array.view()
    view.flags.writeable = False
    return view


def _known(option: str, given: Mapping[str, Any] | None, arrays: Mapping[str, Any]) -> None:
    if given is not None and (unknown := set(given) - set(arrays)):
        raise ValueError(
            f"`{option}` must name layers of `weights`, {sorted(arrays)}. Received: {sorted(unknown)}"
        )


def _labels(
    option: str, name: str, given: Sequence[int] | None, count: int, limit: int | None
) -> tuple[int, ...]:
    labels = tuple(range(count) if given is None else map(int, given))
    if len(labels) != count or min(labels, default=0) < 0 or len(set(labels)) != count:
        raise ValueError(
            f"`{option}` must say for each of the {count} {option} of {name!r} which one it is. "
            f"Received: {option}={labels}"
        )
    if limit is not None and max(labels, default=0) >= max(limit, 1):
        raise ValueError(
            f"`{option}` must be in [0, {limit}) for {name!r}. Received: {option}={labels}"
        )
    return labels


def _start(name: str, given: Any, batch: int) -> Integers:
    """(1,) or (B,)."""
    start = np.atleast_1d(np.asarray(given))
    if start.dtype.kind not in "iu" or start.shape not in ((1,), (batch,)):
        raise ValueError(
            f"`starts` must be an integer, or {batch} of them, for {name!r}. Received: starts={given!r}"
        )
    return start.astype(np.int64)


def _cell(name: str, length: tuple[int, int], size: tuple[int, ...]) -> tuple[int, int]:
    """How many queries and keys a weight stands for."""
    T, S = (max(1, -(-n // max(1, k))) for n, k in zip(length, size, strict=True))
    if size != (-(-length[0] // T), -(-length[1] // S)):
        raise ValueError(
            "`lengths` must be the (T, S) that the weights have, or that they are pooled from in equal cells. "
            f"Received: lengths={length} for {name!r}, whose weights are {size[0]} x {size[1]}"
        )
    return T, S
