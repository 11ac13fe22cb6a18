"""How heads and positions affect a result: ablation, and patching between two runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from heed.config import one_of
from heed.inspect import _names
from heed.inspect._grid import Baseline, Cell, run_baseline, run_cells
from heed.inspect._row_statistics import Floats, each_head
from heed.inspect._run import ModelCall, check_function, run_observed
from heed.inspect._watch import Place
from heed.ops.backends import current

_KINDS = (
    *("heads", "input", "output"),
    *("attention_output", "cross_attention_output", "feed_forward_output"),
)


class HeadCost(NamedTuple):
    """The cost of ablating one head."""

    layer: str
    head: int
    cost: float


@dataclass(frozen=True)
class Ablation:
    """The result of `ablate`.

    Attributes:
        baseline: the metric of the whole model.
        costs: the metric without each head minus the baseline, (N,) by layer name.
        passes: how often the model ran.

    >>> Ablation(1.0, {"a": np.array([0.5, -0.25])}).ranking[0]
    HeadCost(layer='a', head=0, cost=0.5)
    """

    baseline: float
    costs: Mapping[str, Floats]
    passes: int = 0

    @property
    def ranking(self) -> list[HeadCost]:
        """All heads, the most costly first."""
        return sorted((HeadCost(*x) for x in each_head(self.costs)), key=lambda x: -x.cost)

    def __repr__(self) -> str:
        lines = [f"  {x.cost:+.4g}  {x.layer}, head {x.head}" for x in self.ranking]
        return _join_first(f"<Ablation of {self.baseline:.4g}", lines)


def ablate(
    model: Any,
    inputs: Any,
    metric: Callable[[Any], Any],
    *,
    layers: Sequence[str] | None = None,
    call_arguments: Mapping[str, Any] | None = None,
) -> Ablation:
    """Measure the contribution of each head by switching it off. The model itself does not change.

    A head that is off gives 0 to the output projection. Its cost is metric(outputs without it) - metric(outputs), so
    the metric should be a loss; negate a metric where larger is better.

    Args:
        model, inputs, call_arguments: as for `capture`; it runs once, and then with up to 64 copies of the inputs, each
            without one head.
        metric: takes the model's outputs and returns a number.
        layers: names of attention layers, as for `capture`. Default: all. A layer called twice counts as two.

    Returns:
        An `Ablation`, with `ranking`.

    Raises:
        ValueError, TypeError: as `capture`, and if a layer with several heads has no output projection.

    Source: Michel et al., "Are Sixteen Heads Really Better than One?", 2019, section 3.2.

    >>> import keras, numpy as np
    >>> x = keras.Input((6, 8))
    >>> model = keras.Model(x, keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x))
    >>> values = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
    >>> expected = model(values)
    >>> found = ablate(model, values, lambda y: np.mean((y - expected) ** 2))
    >>> found.baseline, len(found.ranking), bool(found.ranking[0].cost > found.ranking[1].cost > 0)
    (0.0, 2, True)
    """
    measure = _make_measure(metric)
    call = ModelCall(model, inputs, call_arguments)
    with current().without_gradients():
        baseline = run_baseline(call, layers)
        number = measure(baseline.outputs)
        places = _find_places(baseline, "heads", layers)
        cells = [Cell(full, head) for full in places for head in range(baseline.places[full][2])]
        found, passes = run_cells(call, baseline, cells, measure)
    costs: dict[str, list[float]] = {}
    for cell, value in zip(cells, found, strict=True):
        costs.setdefault(places[cell.place].removesuffix("/heads"), []).append(value)
    return Ablation(number, {name: np.array(x) - number for name, x in costs.items()}, passes + 1)


class Effect(NamedTuple):
    """The effect of patching one cell."""

    place: str
    head: int | None
    position: int | None
    effect: float


@dataclass(frozen=True)
class PatchingEffects:
    """The result of `patching_effects`.

    Attributes:
        clean, corrupted: the metric of both runs.
        effects: the metric of the corrupted run with one patch, minus that without, by name: (N,) of the heads of an
            attention, (N, T) by position; (T,) of a place of the residual stream.
        passes: how often the model ran.
    """

    clean: float
    corrupted: float
    effects: Mapping[str, Floats]
    passes: int

    @property
    def recovered(self) -> dict[str, Floats]:
        """The effects as shares of clean - corrupted: 1 restores the clean run. NaN where both are the same."""
        whole = self.clean - self.corrupted
        return {name: x / whole if whole else x * np.nan for name, x in self.effects.items()}

    @property
    def ranking(self) -> list[Effect]:
        """All cells, those first that move the metric most towards that of the clean run."""
        sign = -1 if self.clean < self.corrupted else 1
        found = []
        for name, x in self.effects.items():
            of_heads = name.endswith("/heads") or name == "heads"
            for where, effect in np.ndenumerate(x):
                head = where[0] if of_heads else None
                position = None if of_heads and len(where) == 1 else where[-1]
                found.append(Effect(name, head, position, float(effect)))
        return sorted(found, key=lambda x: -sign * x.effect)

    def __repr__(self) -> str:
        lines = []
        for x in self.ranking:
            parts = [x.place]
            parts += [] if x.head is None else [f"head {x.head}"]
            parts += [] if x.position is None else [f"position {x.position}"]
            lines.append(f"  {x.effect:+.4g}  {', '.join(parts)}")
        head = f"<PatchingEffects from {self.corrupted:.4g} to {self.clean:.4g}, in {self.passes} passes"
        return _join_first(head, lines)


def _join_first(head: str, lines: Sequence[str]) -> str:
    """Return a representation with the first ten lines."""
    more = [f"  ... and {len(lines) - 10} more"] if len(lines) > 10 else []
    return "\n".join([head, *lines[:10], *more]) + ">"


def patching_effects(
    model: Any,
    clean: Any,
    corrupted: Any,
    metric: Callable[[Any], Any],
    *,
    kind: str = "heads",
    by_position: bool = False,
    layers: Sequence[str] | None = None,
    call_arguments: Mapping[str, Any] | None = None,
) -> PatchingEffects:
    """Measure which heads or positions carry what two runs differ in, by patching each from the clean run.

    The model runs on both inputs. Then it runs on the corrupted ones again, with one value replaced by that of the
    clean run, for each cell of the grid: copies of the inputs form a batch, one a cell, and blocks before the first
    patch of a batch are not run again.

    Args:
        model, call_arguments: as for `capture`.
        clean, corrupted: two inputs of the same lengths.
        metric: takes the model's outputs and returns a number, such as a logit or a difference of two (`contrast`).
        kind: "heads", the output of each head; or of each block "input", "output", "attention_output",
            "cross_attention_output" or "feed_forward_output", by position.
        by_position: whether to patch heads at single positions: (N, T) instead of (N,) cells a layer.
        layers: names of attention layers, blocks or places. Default: all.

    Returns:
        `PatchingEffects`, with `ranking` and the number of passes.

    Raises:
        ValueError: if the two runs differ in length, if the metric returns no number, if the kind or a layer does not
            exist, or as `capture`.
        TypeError: as `capture`, or if the inputs can be read only once.
        RuntimeError: as `capture`.

    Source: Meng et al., "Locating and Editing Factual Associations in GPT", 2022, section 2; Wang et al.,
        "Interpretability in the Wild", 2022, section 3.

    >>> import keras, numpy as np
    >>> x = keras.Input((6, 8))
    >>> model = keras.Model(x, keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x))
    >>> clean, corrupted = np.random.default_rng(0).normal(size=(2, 1, 6, 8)).astype("float32")
    >>> found = patching_effects(model, clean, corrupted, lambda y: y[0, -1, 0])
    >>> bool(np.isclose(found.effects["attention/heads"].sum(), found.clean - found.corrupted, atol=1e-5))
    True
    >>> found.passes
    3
    """
    one_of(_KINDS).check("kind", kind)
    measure = _make_measure(metric)
    sources: dict[str, Any] = {}

    def keep(place: Place, x: Any) -> None:
        if place.part == kind:
            sources[place.name] = x

    call = ModelCall(model, corrupted, call_arguments)
    with current().without_gradients():
        baseline = run_baseline(call, layers)
        places = _find_places(baseline, kind, layers)
        clean_call = ModelCall(model, clean, call_arguments)
        outputs, _ = run_observed(clean_call, None, layers, taps=(keep,))
        for full, name in places.items():
            shape = tuple(getattr(sources.get(full), "shape", ()))
            if shape != baseline.places[full]:
                raise ValueError(
                    "`clean` and `corrupted` must have the same shapes. "
                    f"Received: {shape} and {baseline.places[full]} at {name!r}"
                )
        cells, sizes = [], {}
        for full in places:
            T, *rest = baseline.places[full][1:]
            sizes[full] = (T,) if kind != "heads" else (rest[0], T) if by_position else (rest[0],)
            for where in np.ndindex(*sizes[full]):
                head = where[0] if kind == "heads" else None
                position = where[-1] if kind != "heads" or by_position else None
                cells.append(Cell(full, head, position))
        numbers = measure(outputs), measure(baseline.outputs)
        found, passes = run_cells(call, baseline, cells, measure, sources)
    effects, rest_of = {}, iter(found)
    for full, size in sizes.items():
        values = [next(rest_of) for _ in range(int(np.prod(size)))]
        effects[places[full]] = np.reshape(values, size) - numbers[1]
    return PatchingEffects(*numbers, effects, passes + 2)


def _find_places(baseline: Baseline, kind: str, layers: Sequence[str] | None) -> dict[str, str]:
    """Return the short names of all chosen places of a kind, by full name."""
    fulls = [name for name in baseline.places if name.rpartition("/")[2] == kind]
    if kind == "heads":
        missing = [
            x
            for x in baseline.names
            if f"{x}/heads" not in baseline.places and _is_chosen(x, layers)
        ]
        if missing:
            raise ValueError(
                "Heads must have an output projection that heed knows by its name, such as `output_dense`. "
                f"Received: {', '.join(map(repr, missing))}, without one"
            )
        short = [f"{baseline.names[full.removesuffix('/heads')]}/heads" for full in fulls]
    else:
        short = _names.shorten_names(fulls) if fulls else []
    if not fulls:
        raise ValueError(
            f"`kind` must be one that the model has. Received: kind={kind!r}, places {list(baseline.places)}"
        )
    chosen = {
        full: name for full, name in zip(fulls, short, strict=True) if _is_chosen(full, layers)
    }
    if not chosen:
        raise ValueError(
            f"`layers` must name places of the kind {kind!r}: {', '.join(map(repr, short))}. "
            f"Received: layers={layers!r}"
        )
    return chosen


def _is_chosen(full: str, layers: Sequence[str] | None) -> bool:
    return layers is None or any(_names.selects(x, full) for x in layers)


def _make_measure(metric: Callable[[Any], Any]) -> Callable[[Any], float]:
    check_function("metric", metric)

    def measure(outputs: Any) -> float:
        value = metric(outputs)
        if "bfloat16" in str(getattr(value, "dtype", "")):  # no number of NumPy's
            value = ops.cast(value, "float32")
        array = np.asarray(ops.convert_to_numpy(value)) if value is not None else np.array(None)
        if array.size != 1 or array.dtype.kind not in "fiu":
            received = "None" if value is None else f"{array.dtype} of shape {array.shape}"
            raise ValueError(f"`metric` must return a number. Received: {received}")
        return float(array.reshape(()))

    return measure
