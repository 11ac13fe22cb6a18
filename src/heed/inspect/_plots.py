"""Pictures of captured attention, as matplotlib figures that no global state knows of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed._figure import new_figure
from heed.inspect import _drawing as drawing
from heed.inspect import _names
from heed.inspect._capture import Capture
from heed.inspect._interventions import Ablation
from heed.inspect._measures import by_head

Floats = NDArray[np.floating[Any]]

_FEW = 16  # tokens that are named beside small panels
_UNITS = {
    "entropy": "entropy (nats)",
    "distance": "mean distance (positions)",
    "first": "share on the first token",
    "previous": "share on the previous token",
    "same": "share on the token itself",
    "next": "share on the next token",
}


def plot_heads(
    capture: Capture,
    layer: str,
    *,
    heads: Sequence[int] | None = None,
    tokens: Sequence[Any] | None = None,
    key_tokens: Sequence[Any] | None = None,
    example: int = 0,
) -> Any:
    """All heads of one layer, side by side on one scale, each with its mean entropy.

    Args:
        capture: the weights.
        layer: name of a layer.
        heads: which of its heads. Default: all that were captured.
        tokens, key_tokens: T and S tokens, written where there are at most 16. Default for self-attention: the keys'
            are the queries'.
        example: which one of the batch, in [0, B).

    Returns:
        A `matplotlib.figure.Figure`, for `savefig("heads.png")` or `("heads.svg")`; notebooks show it.

    Raises:
        ValueError: for a layer, head or entry that is not there, with those that are; for another number of tokens.
        ImportError: without matplotlib.

    >>> import numpy as np
    >>> weights = np.stack([np.eye(5), np.full((5, 5), 0.2)])[None]
    >>> figure = plot_heads(Capture({"a": weights}, {"a": "self"}), "a", tokens="what a head looks at".split())
    >>> [axes.get_title(loc="left") for axes in figure.axes[:2]]
    ['head 0', 'head 1']
    """
    example = _names.check_example(capture.weights, capture.layer(layer), example)
    chosen = capture.heads[layer] if heads is None else tuple(heads)
    pictures = [capture.weights[layer][example, capture.head(layer, head)] for head in chosen]
    entropy = [capture.entropy[layer][example, capture.head(layer, head)] for head in chosen]
    rows, columns = _tokens(capture, layer, tokens, key_tokens)
    count = len(chosen)
    across = min(count, 4 if count <= 12 else 6 if count <= 24 else 8)
    down = math.ceil(count / max(1, across))
    small = tokens is not None and max(len(rows), len(columns)) <= _FEW
    width, height = _panel_size(len(rows), len(columns), 2.1 if small else 1.7)
    figure = new_figure(
        width * across + (1.6 if small else 0.9), height * down + (1.2 if small else 0.7)
    )
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    most = max(float(np.nanmax(x, initial=0.0)) for x in pictures) or 1.0
    image = None
    for axes in grid.ravel()[count:]:
        axes.set_visible(False)
    for axes, head, picture, nats in zip(grid.ravel(), chosen, pictures, entropy, strict=False):
        image = drawing.weights_panel(axes, picture, most)
        axes.set_title(f"head {head}", fontsize=8, loc="left", pad=3)
        axes.set_title(
            f"{nats.mean():.2f} nats", fontsize=7, loc="right", pad=3, color=drawing.MUTED
        )
        if small:
            drawing.label_axis(axes.xaxis, columns, 6.5, rotation=90)
            drawing.label_axis(axes.yaxis, rows, 6.5)
        else:
            axes.set_xticks([])
            axes.set_yticks([])
    drawing.colour_bar(figure, image, grid)
    figure.suptitle(f"{layer}  ({capture.kinds[layer]})", fontsize=10, x=0.01, ha="left")
    return figure


def plot_map(
    capture: Capture,
    layer: str,
    head: int,
    *,
    tokens: Sequence[Any] | None = None,
    key_tokens: Sequence[Any] | None = None,
    example: int = 0,
) -> Any:
    """One head, with the tokens on both axes: a row says where its token looks.

    The picture grows with the tokens, so that 100 of them can be read.

    Args:
        capture: the weights.
        layer, head: which head.
        tokens, key_tokens: T and S tokens. Default: the positions; for self-attention the keys' are the queries'.
        example: which one of the batch, in [0, B).

    Returns, Raises: as `plot_heads`.

    >>> import numpy as np
    >>> capture = Capture({"a": np.eye(3)[None, None]}, {"a": "self"})
    >>> plot_map(capture, "a", 0, tokens=["the", "same", "token"]).axes[0].get_title(loc="left")
    'a, head 0'
    """
    example = _names.check_example(capture.weights, capture.layer(layer), example)
    picture = capture.weights[layer][example, capture.head(layer, head)]
    rows, columns = _tokens(capture, layer, tokens, key_tokens)
    figure = _map(picture, rows, columns, f"{layer}, head {head}")
    figure.axes[0].set_xlabel("read: key", fontsize=8, color=drawing.MUTED)
    figure.axes[0].set_ylabel("reads: query", fontsize=8, color=drawing.MUTED)
    return figure


def plot_alignment(
    capture: Capture,
    source: Sequence[Any],
    target: Sequence[Any],
    *,
    layer: str | None = None,
    head: int | None = None,
    example: int = 0,
) -> Any:
    """Which source tokens the decoder read when it wrote each target token; a ring marks the one it read most.

    Args:
        capture: the weights of a decoder.
        source: S tokens, what was read.
        target: T tokens, what was written: row t of the weights led to target[t].
        layer: name of a layer. Default: the mean over all layers of cross-attention.
        head: which head. Default: the mean over all.
        example: which one of the batch, in [0, B).

    Returns, Raises: as `plot_heads`, and ValueError for a capture without cross-attention.

    >>> import numpy as np
    >>> capture = Capture({"cross": np.eye(2)[None, None]}, {"cross": "cross"})
    >>> plot_alignment(capture, ["Guten", "Tag"], ["good", "day"]).axes[0].get_title(loc="left")
    'cross, mean of 1 head'
    """
    names = [name for name in capture if capture.kinds[name] == "cross"]
    names = names if layer is None else [capture.layer(layer)]
    if not names:
        raise ValueError(
            "`capture` must have a layer of cross-attention, or `layer` must be given. "
            f"Received: {', '.join(f'{name!r} ({kind})' for name, kind in capture.kinds.items())}"
        )
    pictures = []
    for name in names:
        _names.check_example(capture.weights, name, example)
        heads = capture.heads[name] if head is None else [head]
        pictures += [capture.weights[name][example, capture.head(name, one)] for one in heads]
    if len({x.shape for x in pictures}) > 1 or len({capture.lengths[name] for name in names}) > 1:
        raise ValueError(
            "`layer` must be given where layers of cross-attention differ in T and S. "
            f"Received: layer=None, (T, S) of {', '.join(str(capture.lengths[x]) for x in names)}"
        )
    places = drawing.picture_places(capture, names[0])
    T, S = capture.lengths[names[0]]
    rows = drawing.labels("target", target, T, places[0])
    columns = drawing.labels("source", source, S, places[1])
    mean = np.mean(pictures, axis=0)
    of = f"mean of {len(pictures)} head{'s' if len(pictures) > 1 else ''}"
    of = of if head is None else f"head {head}" + (f", {of}" if len(names) > 1 else "")
    where = names[0] if len(names) == 1 else f"{len(names)} layers of cross-attention"
    figure = _map(mean, rows, columns, f"{where}, {of}", cell=0.3)
    axes = figure.axes[0]
    axes.set_xlabel("read: source", fontsize=8, color=drawing.MUTED)
    axes.set_ylabel("written: target", fontsize=8, color=drawing.MUTED)
    reading = np.flatnonzero(mean.sum(1) > 0)
    axes.scatter(
        mean[reading].argmax(1),
        reading,
        s=26,
        facecolors="none",
        edgecolors="#d95f02",
        linewidths=1.2,
    )
    return figure


def plot_model(
    source: Capture | Ablation | Mapping[str, Any],
    measure: str = "entropy",
    *,
    where: Any = None,
    label: str | None = None,
) -> Any:
    """Layers against heads, coloured by a measure: which head does what.

    Args:
        source: a `Capture`; or an `Ablation`, drawn by what each head costs; or by layer name (N,), any numbers.
        measure, where: of a capture, as for `by_head`.
        label: what the numbers are. Default: from the measure.

    Returns:
        As `plot_heads`.

    Raises:
        ValueError: as `by_head`; for numbers of another shape.
        ImportError: without matplotlib.

    >>> figure = plot_model({"layer_1": [0.1, 0.9], "layer_2": [0.5, 0.2]}, label="importance")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['0.10', '0.90', '0.50', '0.20']
    """
    if isinstance(source, Capture):
        numbers, label = by_head(source, measure, where=where), label or _UNITS[measure]
        heads: list[Sequence[int]] = [source.heads[name] for name in numbers]
    else:
        costs = source.costs if isinstance(source, Ablation) else source
        numbers = {name: np.asarray(x, np.float64) for name, x in costs.items()}
        label = label or ("cost of switching it off" if isinstance(source, Ablation) else "")
        heads = [range(x.size) for x in numbers.values()]
    if not numbers or any(x.ndim != 1 or not x.size for x in numbers.values()):
        shapes = {name: x.shape for name, x in numbers.items()}
        raise ValueError(
            f"`source` must hold (N,) numbers for each layer. Received: shapes {shapes}"
        )
    names = sorted({head for row in heads for head in row})
    table = np.full((len(numbers), len(names)), np.nan)
    for i, (row, x) in enumerate(zip(heads, numbers.values(), strict=True)):
        table[i, [names.index(head) for head in row]] = x
    figure = new_figure(2.6 + 0.46 * len(names), max(2.2, 1.1 + 0.32 * len(numbers)))
    axes = figure.add_subplot()
    known = table[np.isfinite(table)]
    low, most = np.min(known, initial=0.0), float(np.max(np.abs(known), initial=0.0)) or 1.0
    digits = max(0, (2 if most >= 1 else 1) - math.floor(math.log10(most)))
    colours = {"cmap": drawing.SIGNED, "vmin": -most, "vmax": most}
    if low >= 0:
        colours = {"cmap": drawing.WEIGHTS, "vmin": 0.0, "vmax": most}
    image = axes.imshow(table, aspect="auto", interpolation="nearest", **colours)
    axes.set_facecolor("#f4f5f7")  # a layer with fewer heads
    for (i, j), x in np.ndenumerate(table):
        if np.isfinite(x):
            dark = abs(x) > 0.6 * most
            axes.text(
                j,
                i,
                f"{round(x, digits) + 0.0:.{digits}f}",
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if dark else drawing.INK,
            )
    drawing.label_axis(axes.xaxis, [str(head) for head in names], 8)
    drawing.label_axis(axes.yaxis, list(numbers), 8)
    axes.set_xlabel("head", fontsize=8, color=drawing.MUTED)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    drawing.slim_bar(figure, image, axes, label)
    return figure


def _map(
    picture: Floats, rows: list[str], columns: list[str], title: str, cell: float = 0.24
) -> Any:
    """One large picture, with a label at every row and column."""
    T, S = picture.shape
    longest = max(T, S, 1)
    cell = max(0.135, cell - 0.0016 * longest) if longest <= 160 else 21.6 / longest
    size = min(9.0, max(5.0, cell * 50))
    letter = size / 72 * 0.62  # about the width of a letter, in inches
    left, top = (0.35 + letter * max(map(len, x), default=1) for x in (rows, columns))
    width = max(2.0, cell * S + 1.1, 0.085 * len(title))
    figure = new_figure(left + width, top + max(1.4, cell * T) + 0.8)
    axes = figure.add_subplot()
    image = drawing.weights_panel(axes, picture)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("bottom")
    upright = max(map(len, columns), default=0) <= 2
    drawing.label_axis(axes.xaxis, columns, size, rotation=0 if upright else 90)
    drawing.label_axis(axes.yaxis, rows, size)
    axes.set_title(title, fontsize=10, loc="left", pad=8)
    drawing.colour_bar(figure, image, axes)
    return figure


def _panel_size(T: int, S: int, side: float) -> tuple[float, float]:
    longest = max(T, S, 1)
    return side * max(S / longest, 0.45), side * max(T / longest, 0.45)


def _tokens(
    capture: Capture,
    layer: str,
    tokens: Sequence[Any] | None,
    key_tokens: Sequence[Any] | None,
) -> tuple[list[str], list[str]]:
    """Labels of the rows and columns of a layer's picture."""
    T, S = capture.lengths[layer]
    if key_tokens is None and capture.kinds[layer] != "cross" and T == S:
        key_tokens = tokens
    places = drawing.picture_places(capture, layer)
    rows = drawing.labels("tokens", tokens, T, places[0])
    return rows, drawing.labels("key_tokens", key_tokens, S, places[1])
