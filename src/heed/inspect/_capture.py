"""`Capture`: the attention weights of a model, layer by layer, and what they amount to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        self._hold(
            [
                Layer(name, x, kinds[name], **{key: by.get(name) for key, by in options.items()})
                for name, x in weights.items()
            ],
            outputs,
        )

    @classmethod
    def _of(cls, layers: Iterable[Layer], outputs: Any = None) -> Capture:
        """A capture of layers that are checked already."""
        made = cls.__new__(cls)
        made._hold(layers, outputs)
        return made

    def _hold(self, layers: Iterable[Layer], outputs: Any) -> None:
        self._layers = {layer.name: layer for layer in layers}
        if not self._layers:
            raise ValueError("`weights` must hold at least one layer. Received: weights={}")
        self.names: tuple[str, ...] = tuple(self._layers)
        self.weights: Mapping[str, Floats] = self._each(lambda layer: layer.weights)
        self.kinds: Mapping[str, str] = self._each(lambda layer: layer.kind)
        self.heads: Mapping[str, tuple[int, ...]] = self._each(lambda layer: layer.heads)
        self.rows: Mapping[str, tuple[int, ...]] = self._each(lambda layer: layer.rows)
        self.lengths: Mapping[str, tuple[int, int]] = self._each(lambda layer: layer.lengths)
        self.cells: Mapping[str, tuple[int, int]] = self._each(lambda layer: layer.cells)
        self.starts: Mapping[str, Integers] = self._each(lambda layer: layer.starts)
        self.outputs = outputs

    def _each(self, of: Callable[[Layer], Any]) -> Mapping[str, Any]:
        return MappingProxyType({name: of(layer) for name, layer in self._layers.items()})

    def is_whole(self, name: str) -> bool:
        """Whether the layer's weights are there for every query and key, of the heads that were captured."""
        return self._layers[name].whole

    @property
    def entropy(self) -> Mapping[str, Floats]:
        """See the class."""
        return self._each(lambda layer: layer.statistics.entropy)

    @property
    def distance(self) -> Mapping[str, Floats]:
        """See the class."""
        return self._each(lambda layer: layer.statistics.distance)

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
                name: layer.share("tokens", token)
                for name, layer in self._layers.items()
                if token < layer.lengths[1]
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
        return self._each(lambda layer: layer.share("offsets", offset))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.weights

    def __repr__(self) -> str:
        lines = [f"<Capture of {len(self)} layer{'s' if len(self) > 1 else ''}"]
        return "\n".join([*lines, *(f"  {layer!r}" for layer in self._layers.values())]) + ">"

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
        for number, layer in enumerate(self._layers.values()):
            entries |= {f"{number}/{part}": x for part, x in layer.to_arrays().items()}
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
            layers = [
                Layer.from_arrays(str(name), f"{number}/", entries)
                for number, name in enumerate(entries["names"])
            ]
            return cls._of(layers)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ValueError(
                f"`path` must be a file that Capture.save wrote. Received: {os.fspath(path)!r}: {error}"
            ) from error


def weights_of(capture: Capture, name: str, heads: Sequence[int] | None, example: int) -> Floats:
    """What is held of some heads of a layer, or of all, for one entry of the batch: (heads, rows, columns).

    Raises:
        TypeError: if `example` is not an integer.
        ValueError: for a layer, head or entry that is not there; says what there is.
    """
    weights, number = capture.weights[capture.layer(name)], _names.whole("example", example)
    if not 0 <= number < len(weights):
        raise ValueError(
            f"`example` must be in [0, {len(weights)}), the batch of {name!r}. Received: example={example}"
        )
    chosen = slice(None) if heads is None else [capture.head(name, head) for head in heads]
    return weights[number, chosen]


class Layer:
    """One layer of a `Capture`, checked; arguments and attributes are those of `Capture`, of this layer alone."""

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
        self.weights: Floats = array.view()  # the caller's own array stays as it is
        self.weights.flags.writeable = False
        B, N, *size = array.shape
        T, S = (int(n) for n in (size if lengths is None else lengths))
        self.lengths = T, S
        self._limited = rows is not None and (len(rows) != T or tuple(rows) != tuple(range(T)))
        self.cells = _cell(name, self.lengths, (T, size[1]) if self._limited else tuple(size))
        self.whole = not self._limited and self.cells == (1, 1)
        self.heads = _labels("heads", name, range(N) if heads is None else heads, N, None)
        default = range(0, T, self.cells[0])
        self.rows = _labels("rows", name, default if rows is None else rows, size[0], T)
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
        """Those of all T queries, computed when they are first asked for."""
        if self._statistics is None:
            self._statistics = self._computed("statistics")
        return self._statistics

    def share(self, kind: str, which: int) -> Floats:
        """The statistic "tokens" or "offsets" of one token or offset."""
        if which not in getattr(self.statistics, kind):
            added = self._computed(f"{kind[:-1]} {which}", **{kind: (which,)})
            self._statistics = self.statistics.joined(added)
        return getattr(self.statistics, kind)[which]

    def _computed(self, wanted: str, **chosen: Sequence[int]) -> RowStatistics:
        """Statistics of all weights, or an error that says why they do not give what is wanted."""
        if not self.whole:
            held = "of some rows only" if self._limited else "pooled"
            raise ValueError(
                f"The {wanted} of {self.name!r} must have been captured: name it in capture(..., tokens=[...]), or "
                f"capture the layer whole (size=None). Received: a picture that is {held}"
            )
        places = np.arange(self.lengths[0]) + self.starts.reshape((-1, 1, 1))
        return statistics_of(self.weights, places, **chosen)

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
        """By name, for a file."""
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
    def from_arrays(cls, name: str, prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Layer:
        """From what `to_arrays` gave, with a prefix to each name."""
        rest = {key.removeprefix(prefix): x for key, x in arrays.items() if key.startswith(prefix)}
        weights, starts, kind = rest.pop("weights"), rest.pop("starts"), str(rest.pop("kind"))
        lists = {key: rest.pop(key).tolist() for key in ("heads", "lengths", "rows") if key in rest}
        statistics = RowStatistics.from_arrays(rest) if rest else None
        return cls(name, weights, kind, starts=starts, statistics=statistics, **lists)


def _labels(
    option: str, name: str, given: Sequence[int], count: int, limit: int | None
) -> tuple[int, ...]:
    labels = tuple(map(int, given))
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


def _cell(name: str, length: tuple[int, int], size: tuple[int, ...]) -> tuple[int, int]:
    """How many queries and keys a weight stands for."""
    T, S = (max(1, -(-n // max(1, k))) for n, k in zip(length, size, strict=True))
    if size != (-(-length[0] // T), -(-length[1] // S)):
        raise ValueError(
            "`lengths` must be the (T, S) that the weights have, or that they are pooled from in equal cells. "
            f"Received: lengths={length} for {name!r}, whose weights are {size[0]} x {size[1]}"
        )
    return T, S
