"""`Edit` and `intervene`: changes what heads, positions, edges and the residual stream of a running model hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from keras import ops
from numpy.typing import NDArray

from heed.inspect import _names
from heed.inspect._capture import Capture
from heed.inspect._observed import ObservedAttention, spread
from heed.inspect._watch import Place, Session, watch

CHANGES = ("zero", "mean", "resample", "patch")


@dataclass(eq=False)
class Edit:
    """One change of a running model, for `intervene`.

    Args:
        name: an attention layer, whose heads change before their projection; or a place of the residual stream, as
            "layer_1/output", see `Residual`. The end of a name is enough, and may match several.
        change: what takes the place of the chosen values:

            - "zero": 0; an edge is hidden, as by a mask, so that the other keys share its weight;
            - "mean": the mean over the batch and all positions, of each feature;
            - "resample": the values of another entry of the batch, or of a random one of `run`;
            - "patch": the values of `run`;
            - a function: it gets the chosen values, (B, t, D), (B, t, n, V) of heads, or (B, n, E) of the weights of
              edges, and returns others of this shape.
        heads: which heads of an attention, integers in [0, N). Default: all.
        positions: which positions (queries of heads), integers in [0, T). Default: all.
        edges: which weights, pairs (query, key) of an attention. Default: none, the output of the heads changes.
        run: the `Capture` of another run, with `residual=True` for heads and the stream, or with whole weights
            (`size=None`) for edges; for "patch", and if wanted for "mean" and "resample".
        seed: of "resample".

    Raises:
        ValueError, TypeError: if arguments do not fit each other.

    >>> Edit("layer_1/attention", "zero", heads=[3])
    Edit(name='layer_1/attention', change='zero', heads=(3,), positions=None, edges=None)
    """

    name: str
    change: str | Callable[[Any], Any]
    heads: Sequence[int] | None = None
    positions: Sequence[int] | None = None
    edges: Sequence[tuple[int, int]] | None = None
    run: Capture | None = field(default=None, repr=False)
    seed: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"`name` must be the name of a place. Received: name={self.name!r}")
        if not callable(self.change) and self.change not in CHANGES:
            raise ValueError(
                f"`change` must be a function or one of {', '.join(map(repr, CHANGES))}. "
                f"Received: change={self.change!r}"
            )
        if self.run is not None and not isinstance(self.run, Capture):
            raise TypeError(f"`run` must be a Capture. Received: {type(self.run).__name__}")
        if self.change == "patch" and self.run is None:
            raise ValueError('`run` must be given for change="patch". Received: run=None')
        self.heads = _names.to_integers("heads", self.heads)
        self.positions = _names.to_integers("positions", self.positions)
        if self.edges is not None:
            edges = np.array([tuple(edge) for edge in self.edges])
            if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
                raise ValueError(
                    f"`edges` must be pairs (query, key) of integers. Received: edges={self.edges!r}"
                )
            if self.positions is not None or self.change in ("mean", "resample"):
                raise ValueError(
                    '`edges` can be changed by "zero", "patch" or a function, and have no `positions`. '
                    f"Received: change={self.change!r}, positions={self.positions}"
                )
            self.edges = tuple((int(i), int(j)) for i, j in edges)

    def matches(self, place: Place) -> bool:
        """Return whether the change concerns a place."""
        if self.edges is not None:
            return place.part == "weights" and _names.matches(self.name, place.owner)
        if place.part == "weights":
            return False
        of_heads = place.part == "heads" and _names.matches(self.name, place.owner)
        return of_heads or _names.matches(self.name, place.name)

    def apply(self, place: Place, x: Any) -> Any:
        """Return the changed values of a place."""
        if self.edges is not None:
            return self._change_edges(place, x)
        if self.heads is not None and place.attention is None:
            raise ValueError(
                "`heads` must be None for a place of the residual stream. "
                f"Received: heads={self.heads} for {place.name!r}"
            )
        positions = _check_range("positions", self.positions, int(x.shape[1]), place)
        heads = None
        if place.attention is not None:
            heads = _check_range("heads", self.heads, int(x.shape[2]), place)
        return _replace_part(x, self._new_values(place, x, positions, heads), positions, heads)

    def _new_values(
        self, place: Place, x: Any, positions: NDArray[Any] | None, heads: NDArray[Any] | None
    ) -> Any:
        """Return values that broadcast to `x`."""
        if self.change == "zero":
            return ops.zeros((), x.dtype)
        if callable(self.change):
            part = x if positions is None else ops.take(x, positions, axis=1)
            part = part if heads is None else ops.take(part, heads, axis=2)
            new = self.change(part)
            if tuple(getattr(new, "shape", ())) != tuple(part.shape):
                raise ValueError(
                    f"`change` must return the shape that it gets, {tuple(part.shape)}. "
                    f"Received: {tuple(getattr(new, 'shape', ()))} for {place.name!r}"
                )
            new = ops.cast(new, x.dtype)
            # Each chosen value back to its place; the others are not read.
            for axis, chosen in ((1, positions), (2, heads)):
                if chosen is not None:
                    new = spread(new, chosen, int(x.shape[axis]), axis)
            return new
        source = x if self.run is None else ops.cast(self._source(place, x), x.dtype)
        if self.change == "mean":
            return ops.mean(source, axis=(0, 1), keepdims=True)
        if self.change == "patch":
            return source
        return ops.take(source, self._other_entries(int(x.shape[0]), source), axis=0)

    def _other_entries(self, count: int, source: Any) -> NDArray[np.int32]:
        """Return an entry of the batch for each: another one of the same run, or any of another run."""
        random = np.random.default_rng(self.seed)
        if self.run is not None:
            return random.integers(0, source.shape[0], count).astype("int32")
        if count < 2:
            raise ValueError(
                f'change="resample" needs another entry in the batch, or a `run`. Received: a batch of {count}'
            )
        order = random.permutation(count)
        others = np.empty(count, "int32")
        others[order] = np.roll(order, 1)
        return others

    def _source(self, place: Place, x: Any) -> Any:
        """Return the values of the other run at a place: all positions, in the batch of this run or one."""
        stream = self.run.residual  # type: ignore[union-attr]
        found = [name for name in stream if _names.matches(name, place.name)]
        if not found:
            raise ValueError(
                f"`run` must have recorded {place.name!r}: capture(..., residual=True, size=...). "
                f"Received: {stream!r}"
            )
        name = max(found, key=len)
        recorded = stream.positions.get(name)
        T = stream[name].shape[1]
        if self.change != "mean" and recorded is not None and recorded != tuple(range(T)):
            raise ValueError(
                f"`run` must have recorded all positions of {place.name!r} in order: capture without `rows`. "
                f"Received: positions {recorded}"
            )
        return check_source(
            stream[name],
            x,
            place.name,
            same_length=self.change != "mean",
            same_batch=self.change == "patch",
        )

    def _change_edges(self, place: Place, attention: ObservedAttention) -> ObservedAttention:
        B, N, T, S = attention.sizes
        edges = np.array(self.edges, np.int64).reshape(-1, 2)
        for side, (option, length) in enumerate((("query", T), ("key", S))):
            wrong = edges[(edges[:, side] < 0) | (edges[:, side] >= length)]
            if len(wrong):
                raise ValueError(
                    f"`edges` must have a {option} in [0, {length}) for {place.owner!r}. "
                    f"Received: {tuple(map(int, wrong[0]))}"
                )
        heads = _check_range("heads", self.heads, N, place)
        chosen = np.arange(N) if heads is None else heads
        if self.change == "zero":
            if replaced := sorted(attention.replaced_rows & {int(i) for i, _ in edges}):
                raise ValueError(
                    "Edges must be hidden before other weights of their queries are replaced. "
                    f"Received: queries {replaced} of {place.owner!r}, replaced before"
                )
            hidden = np.zeros((N, T, S), bool)
            for i, j in edges:
                hidden[chosen, i, j] = True
            return attention.hide(hidden)
        rows = sorted({int(i) for i, _ in edges})
        weights = np.concatenate(
            [attention.compute_weights(range(i, i + 1), range(N)) for i in rows], axis=2
        )
        at = np.array([rows.index(int(i)) for i, _ in edges])
        part = weights[:, chosen][:, :, at, edges[:, 1]]
        if callable(self.change):
            new = np.asarray(ops.convert_to_numpy(self.change(ops.convert_to_tensor(part))))
        else:
            new = self._source_edges(place, edges, chosen, (B, N, T, S))
        if new.shape != part.shape:
            raise ValueError(
                f"`change` must return the shape that it gets, {part.shape}. Received: {new.shape} for {place.owner!r}"
            )
        for number, (row, key) in enumerate(zip(at, edges[:, 1], strict=True)):
            weights[:, chosen, row, key] = new[:, :, number]
        return attention.replace_weights(rows, weights)

    def _source_edges(
        self, place: Place, edges: NDArray[Any], heads: NDArray[Any], sizes: Sequence[int]
    ) -> NDArray[Any]:
        run: Any = self.run
        found = [name for name in run if _names.matches(name, place.owner) and run.is_whole(name)]
        if not found:
            raise ValueError(
                f"`run` must have whole weights of {place.owner!r}: capture(..., size=None). Received: {run!r}"
            )
        name = max(found, key=len)
        weights = run.weights[name]
        if run.heads[name] != tuple(range(sizes[1])):
            raise ValueError(
                f"`run` must have all heads of {place.owner!r} in order: capture without `heads`. "
                f"Received: heads {run.heads[name]} of {sizes[1]}"
            )
        if weights.shape[0] not in (1, sizes[0]) or weights.shape[1:] != tuple(sizes[1:]):
            raise ValueError(
                f"`run` must have the lengths of this run at {place.owner!r}. "
                f"Received: weights {weights.shape} for {tuple(sizes)}"
            )
        part = weights[:, heads][:, :, edges[:, 0], edges[:, 1]]
        return np.broadcast_to(part, (sizes[0], *part.shape[1:]))


class _Taps:
    """A tap that applies edits, and knows which were used."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self.edits = edits
        self.used: set[int] = set()
        self.names: dict[str, None] = {}

    def __call__(self, place: Place, x: Any) -> Any:
        name = place.owner if place.part == "weights" else place.name
        self.names[name] = None
        for number, edit in enumerate(self.edits):
            if edit.matches(place):
                x = edit.apply(place, x)
                self.used.add(number)
        return x

    def check(self) -> None:
        """Check that each edit found its place."""
        for edit in (x for number, x in enumerate(self.edits) if number not in self.used):
            if not self.names:
                raise RuntimeError(
                    "A model must run inside `intervene`, outside of a compiled function (jit, model.predict), which "
                    "no edit reaches. Received: no attention and no block that ran"
                )
            known = ", ".join(map(repr, _names.shorten_names(list(self.names))))
            raise ValueError(f"`name` must name one of {known}. Received: {edit.name!r}")


def intervene(*edits: Edit) -> AbstractContextManager[None]:
    """Apply edits to every model that this thread runs inside the `with` block.

    The models themselves do not change. Blocks nest: the edits of the outer one come first. Whatever runs inside, such
    as `capture`, sees the changed model. What `intervene` returns can be used in several blocks.

    Args:
        *edits: in the order in which they are applied to one place.

    Raises:
        TypeError: if an argument is no `Edit`.
        ValueError: if a place, head, position or edge does not exist, or another run does not fit; for a place at the
            end of the block.
        RuntimeError: if a model runs inside a compiled function.

    >>> import keras, numpy as np
    >>> x = keras.Input((6, 8))
    >>> model = keras.Model(x, keras.layers.MultiHeadAttention(2, 4, use_bias=False, name="attention")(x, x))
    >>> values = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
    >>> with intervene(Edit("attention", "zero", positions=[2])):
    ...     changed = model(values)
    >>> np.any(changed != model(values), axis=(0, 2)).tolist()
    [False, False, True, False, False, False]
    """
    for edit in edits:
        if not isinstance(edit, Edit):
            raise TypeError(f"`edits` must be of type Edit. Received: {edit!r}")
    return _Intervention(edits)


# The blocks that this thread or task is in, the innermost last.
_entered: ContextVar[tuple[AbstractContextManager[None], ...]] = ContextVar(
    "heed_edits", default=()
)


class _Intervention(AbstractContextManager[None]):
    """A block with edits, which can be entered again, in other threads or tasks at the same time."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits = edits

    def __enter__(self) -> None:
        block = self._apply()
        block.__enter__()
        _entered.set((*_entered.get(), block))

    def __exit__(self, *error: Any) -> bool | None:
        *outer, block = _entered.get()
        _entered.set(tuple(outer))
        return block.__exit__(*error)

    @contextmanager
    def _apply(self) -> Iterator[None]:
        taps = _Taps(self._edits)
        with watch(Session(taps=(taps,))):
            yield
        taps.check()


def _replace_part(x: Any, new: Any, positions: Any, heads: Any) -> Any:
    """Return `x` (B, T, ...) with values of `new`, which broadcasts to it, at positions and heads (None for all)."""
    if positions is None and heads is None:
        return ops.broadcast_to(new, x.shape)
    chosen: Any = True
    for axis, indices in ((1, positions), (2, heads)):
        if indices is not None:
            one = np.zeros(int(x.shape[axis]), bool)
            one[indices] = True
            chosen = chosen & one.reshape([-1 if i == axis else 1 for i in range(len(x.shape))])
    return ops.where(chosen, new, x)


def check_source(
    source: Any, x: Any, name: str, *, same_length: bool = True, same_batch: bool = True
) -> Any:
    """Return the values of another run, after a check that they fit those of this one."""
    batch = source.shape[0] in (1, x.shape[0]) or not same_batch
    length = source.shape[1] == x.shape[1] or not same_length
    if not (batch and length and tuple(source.shape[2:]) == tuple(x.shape[2:])):
        raise ValueError(
            "Runs must have the same length where values of one take the place of those of the other, "
            "and the same batch to patch. "
            f"Received: {tuple(source.shape)} for {tuple(x.shape)} at {name!r}"
        )
    return source


def _check_range(option: str, chosen: Any, limit: int, place: Place) -> NDArray[Any] | None:
    found = _names.check_indices(option, chosen, limit, f" for {place.name!r}")
    return None if found is None else np.array(found, "int32")
