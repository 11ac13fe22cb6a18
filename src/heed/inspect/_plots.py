"""Plots of captured attention, as matplotlib figures outside of pyplot's global state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heed.config import one_of
from heed.figure import new_figure
from heed.inspect._capture import Capture, select_weights
from heed.inspect._circuits import SCORES, CircuitScores
from heed.inspect._interventions import Ablation
from heed.inspect._measures import MEASURES, by_head
from heed.inspect._row_statistics import Floats

# One hue from light to dark, and two hues that meet in white. Both work for all kinds of colour vision, the first also
# in print.
_WEIGHTS, _SIGNED = "Blues", "PuOr_r"
_MUTED, _INK = "#5b6670", "#1b2126"
_TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1)
_MOST_LABELS = 160  # longer axes label only some positions
_FEW = 16  # small panels label at most this many tokens
_FOG = (0.6, 0.64, 0.67)  # grey hides black, white and colours alike


def plot_heads(
    capture: Capture,
    layer: str,
    *,
    heads: Sequence[int] | None = None,
    tokens: Sequence[Any] | None = None,
    key_tokens: Sequence[Any] | None = None,
    example: int = 0,
) -> Any:
    """Plot all heads of one layer side by side on one scale, each with its mean entropy.

    Args:
        capture: the weights.
        layer: name of a layer.
        heads: which of its heads. Default: all that were captured.
        tokens, key_tokens: T and S tokens, shown if there are at most 16. Self-attention needs only `tokens`.
        example: which entry of the batch, in [0, B).

    Returns:
        A `matplotlib.figure.Figure`, for `savefig("heads.png")` or `("heads.svg")`; notebooks show it.

    Raises:
        ValueError: if a layer, head or entry does not exist (the message lists those that do), or tokens do not fit.
        ImportError: if matplotlib is missing.

    >>> import numpy as np
    >>> weights = np.stack([np.eye(5), np.full((5, 5), 0.2)])[None]
    >>> figure = plot_heads(Capture({"a": weights}, {"a": "self"}), "a", tokens="what a head attends to".split())
    >>> [axes.get_title(loc="left") for axes in figure.axes[:2]]
    ['head 0', 'head 1']
    """
    pictures = select_weights(capture, layer, heads, example)
    chosen = capture.heads[layer] if heads is None else tuple(heads)
    rows, columns = _make_labels(capture, layer, tokens=tokens, key_tokens=key_tokens)
    count = len(chosen)
    across = min(count, 4 if count <= 12 else 6 if count <= 24 else 8)
    down = math.ceil(count / max(1, across))
    small = tokens is not None and max(len(rows), len(columns)) <= _FEW
    side, longest = 2.1 if small else 1.7, max(len(rows), len(columns), 1)
    width, height = (side * max(len(x) / longest, 0.45) for x in (columns, rows))
    figure = new_figure(
        width * across + (1.6 if small else 0.9), height * down + (1.2 if small else 0.7)
    )
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    most = float(np.nanmax(pictures, initial=0.0)) or 1.0
    entropy, image = capture.entropy[layer][example], None
    for axes in grid.ravel()[count:]:
        axes.set_visible(False)
    for axes, head, picture in zip(grid.ravel(), chosen, pictures, strict=False):
        nats = entropy[capture.head_index(layer, head)].mean()
        image = _draw_panel(axes, picture, most)
        axes.set_title(f"head {head}", fontsize=8, loc="left", pad=3)
        axes.set_title(f"{nats:.2f} nats", fontsize=7, loc="right", pad=3, color=_MUTED)
        _label_axis(axes.xaxis, columns if small else [], 6.5, rotation=90)
        _label_axis(axes.yaxis, rows if small else [], 6.5)
    _add_colour_bar(figure, image, grid)
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
    """Plot one head with the tokens on both axes: a row shows what its token attends to.

    The plot grows with the number of tokens, so that 100 are still readable.

    Args:
        capture: the weights.
        layer, head: which head.
        tokens, key_tokens: T and S tokens. Default: the positions. Self-attention needs only `tokens`.
        example: which entry of the batch, in [0, B).

    Returns, Raises: as `plot_heads`.

    >>> import numpy as np
    >>> capture = Capture({"a": np.eye(3)[None, None]}, {"a": "self"})
    >>> plot_map(capture, "a", 0, tokens=["the", "same", "token"]).axes[0].get_title(loc="left")
    'a, head 0'
    """
    (picture,) = select_weights(capture, layer, [head], example)
    labels = _make_labels(capture, layer, tokens=tokens, key_tokens=key_tokens)
    return _draw_map(picture, labels, f"{layer}, head {head}", ("reads: query", "read: key"))


def plot_alignment(
    capture: Capture,
    source: Sequence[Any],
    target: Sequence[Any],
    *,
    layer: str | None = None,
    head: int | None = None,
    example: int = 0,
) -> Any:
    """Plot which source tokens a decoder read for each target token; a ring marks the strongest.

    Args:
        capture: the weights of a decoder.
        source: the S tokens that the decoder read.
        target: the T tokens that it wrote: row t of the weights led to target[t].
        layer: name of a layer. Default: the mean of all cross-attention layers.
        head: which head. Default: the mean of all.
        example: which entry of the batch, in [0, B).

    Returns, Raises: as `plot_heads`, and ValueError if the capture has no cross-attention.

    >>> import numpy as np
    >>> capture = Capture({"cross": np.eye(2)[None, None]}, {"cross": "cross"})
    >>> plot_alignment(capture, ["Guten", "Tag"], ["good", "day"]).axes[0].get_title(loc="left")
    'cross, mean of 1 head'
    """
    layers = _select_layers(capture, layer, None if head is None else [head], example)
    labels = _make_labels(capture, next(iter(layers)), target=target, source=source)
    mean, where, of = _average(layers)
    of = of if head is None else f"head {head}" + (f", {of}" if len(layers) > 1 else "")
    sides = ("written: target", "read: source")
    figure = _draw_map(mean, labels, f"{where}, {of}", sides, cell=0.3)
    reading = np.flatnonzero(mean.sum(1) > 0)
    ring = {"facecolors": "none", "edgecolors": "#d95f02", "linewidths": 1.2}
    figure.axes[0].scatter(mean[reading].argmax(1), reading, s=26, **ring)
    return figure


def plot_cross_attention(
    capture: Capture,
    source: Sequence[Any],
    target: Sequence[Any],
    *,
    title: str = "",
    example: int = 0,
) -> Any:
    """Plot all cross-attention of a decoder: the mean of all heads, followed by each head of each layer.

    Args:
        capture: the weights of a decoder; every layer of cross-attention is drawn.
        source: the S tokens that the decoder read.
        target: the T tokens that it wrote: row t of the weights led to target[t].
        title: a line above the plot.
        example: which entry of the batch, in [0, B).

    Returns, Raises: as `plot_alignment`.

    >>> import numpy as np
    >>> capture = Capture({"cross": np.eye(2)[None, None]}, {"cross": "cross"})
    >>> figure = plot_cross_attention(capture, ["Guten", "Tag"], ["good", "day"])
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['mean of all heads', 'head 1']
    """
    layers = _select_layers(capture, None, None, example)
    rows, columns = _make_labels(capture, next(iter(layers)), target=target, source=source)
    T, S, heads = len(rows), len(columns), max(map(len, layers.values()))
    # Sizes in inches follow from the numbers of cells and the labels, which never overlap.
    widest = max(map(len, columns), default=1)
    mean_width = 2.2 + S * max(0.42, 0.1 * widest + 0.06)
    heads_width = heads * min(2.2, max(1.0, 0.2 * S))
    figure = new_figure(mean_width + heads_width + 1.6, 1.6 + max(0.3 * T, 1.5 * len(layers)))
    left, right = figure.subfigures(1, 2, width_ratios=[mean_width, heads_width + 1.2])
    figure.suptitle(title, fontsize=12, fontweight="bold", parse_math=False)

    axes = left.subplots()
    image = _draw_panel(axes, _average(layers)[0], 1.0)
    axes.set_title("mean of all heads", fontsize=9)
    _label_axis(axes.xaxis, columns, 10)
    _label_axis(axes.yaxis, rows, 10)
    axes.set_xlabel("read: the source")
    axes.set_ylabel("written: the target, from top to bottom")

    grid = right.subplots(len(layers), heads, squeeze=False)
    for number, (line, pictures) in enumerate(zip(grid, layers.values(), strict=True), 1):
        line[0].set_ylabel(f"layer {number}")
        for axes in line[len(pictures) :]:
            axes.set_visible(False)
        for head, (axes, picture) in enumerate(zip(line, pictures, strict=False), 1):
            _draw_panel(axes, picture, 1.0)
            axes.set_title(f"head {head}", fontsize=9)
            _label_axis(axes.xaxis, columns if widest <= 2 and S <= 10 else [], 6)
            _label_axis(axes.yaxis, [], 6)
    _add_colour_bar(figure, image, grid)
    return figure


def plot_image_attention(
    capture: Capture,
    layer: str | None,
    image: Any,
    *,
    tokens: Sequence[Any] | None = None,
    query: int | None = None,
    heads: Sequence[int] | None = None,
    grid: tuple[int, int] | None = None,
    example: int = 0,
) -> Any:
    """Plot attention over an image: a panel for each token that was written, or for each head of one query.

    Keys are the patches of the image, row by row. Fog covers patches with little weight, and a frame marks the patch
    with the most. With `tokens`, the plot shows what a decoder read for each word of a caption, averaged over heads;
    with `query=0`, what each head of a class token attends to. One more key may precede the patches, a class token:
    then each panel says which share of the weight is on the image.

    Args:
        capture: the weights of all keys.
        layer: name of a layer. None: the mean of all cross-attention layers.
        image: (height, width), (height, width, 1) or (height, width, 3): bytes, or floats in [0, 1]. Other floats are
            rescaled from their minimum, black, to their maximum.
        tokens: T tokens: row t of the weights led to tokens[t]. Default: the numbers of the rows.
        query: a row, to see its heads one by one; `tokens` are ignored then.
        heads: which heads. Default: all that were captured.
        grid: numbers of rows and columns of patches. Default: those that make square patches.
        example: which entry of the batch, in [0, B).

    Returns, Raises: as `plot_alignment`, and ValueError if the image has another shape, the query does not exist, or
        the number of patches is not that of the keys.

    >>> import numpy as np
    >>> capture = Capture({"cross": np.full((1, 2, 3, 4), 0.25)}, {"cross": "cross"})
    >>> figure = plot_image_attention(capture, "cross", np.zeros((6, 6)), tokens="a red circle".split())
    >>> [axes.get_title(loc="left") for axes in figure.axes[:4]]
    ['image', 'a', 'red', 'circle']
    """
    pixels = _to_pixels(image)
    layers = _select_layers(capture, layer, heads, example)
    name = next(iter(layers))
    weights, where, of = _average(layers)
    if capture.cells[name] != (1, 1):
        raise ValueError(
            "`capture` must not be pooled: inspect.capture(..., size=None). "
            f"Received: {name!r} pooled to cells of {capture.cells[name]}"
        )
    if query is None:
        titles, _ = _make_labels(capture, name, tokens=tokens, key_tokens=None)
    elif len(layers) > 1 or query not in capture.rows[name]:
        raise ValueError(
            f"`query` must be one of the rows of one `layer`, {', '.join(map(str, capture.rows[name]))}. "
            f"Received: query={query!r}, layer={layer!r}"
        )
    else:
        weights = layers[name][:, capture.rows[name].index(query)]
        titles = [f"head {head}" for head in (capture.heads[name] if heads is None else heads)]
        of = f"query {query}"
    (rows, columns), first = _find_grid(capture.lengths[name][1], pixels.shape, grid)
    maps = weights[:, first:].reshape(-1, rows, columns)

    height, width = pixels.shape[:2]
    across = min(len(maps) + 1, 6)
    down = -(-(len(maps) + 1) // across)
    panel_height = 1.5 * min(3.0, height / width) + 0.25
    figure = new_figure(1.5 * across + 0.9, panel_height * down + 0.5)
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.patches import Rectangle

    grid_of_axes = figure.subplots(down, across, squeeze=False)
    fog = LinearSegmentedColormap.from_list("fog", [(*_FOG, 0.92), (*_FOG, 0.0)])
    norm = PowerNorm(0.5, 0.0, float(np.nanmax(maps, initial=0.0)) or 1.0)
    drawn, extent = None, (0, width, height, 0)
    for number, axes in enumerate(grid_of_axes.ravel()):
        axes.set_visible(number <= len(maps))
        axes.imshow(pixels, "gray", vmin=0, vmax=1, extent=extent, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_color("#c5ccd3")
        if number == 0:
            axes.set_title("image", fontsize=8, loc="left", pad=3, color=_MUTED)
        elif number <= len(maps):
            one = maps[number - 1]
            drawn = axes.imshow(one, fog, norm, extent=extent, interpolation="nearest")
            axes.set_title(titles[number - 1], fontsize=9, loc="left", pad=3, parse_math=False)
            if first:
                axes.set_title(
                    f"{one.sum():.0%} on it", fontsize=7, loc="right", pad=3, color=_MUTED
                )
            if one.any():
                row, column = np.unravel_index(one.argmax(), one.shape)
                corner = (column * width / columns, row * height / rows)
                size = (width / columns, height / rows)
                axes.add_patch(Rectangle(corner, *size, fill=False, ec="#d95f02", lw=1.2))
    if drawn is not None:
        _add_colour_bar(figure, drawn, grid_of_axes)
    figure.suptitle(f"{where}, {of}", fontsize=10, x=0.01, ha="left")
    return figure


def plot_model(
    source: Capture | Ablation | CircuitScores | Mapping[str, Any],
    measure: str = "entropy",
    *,
    where: Any = None,
    label: str | None = None,
) -> Any:
    """Plot layers against heads, coloured by a measure.

    Args:
        source: a `Capture`; an `Ablation`, which is coloured by cost; `CircuitScores`; or any (N,) numbers by layer
            name, such as the effects of `patching_effects` on heads.
        measure, where: for a capture, as for `by_head`; of circuits "previous", "duplicate" or "induction".
        label: the name of the numbers. Default: that of the measure.

    Returns:
        As `plot_heads`.

    Raises:
        ValueError: as `by_head`, or if numbers have another shape.
        ImportError: if matplotlib is missing.

    >>> figure = plot_model({"layer_1": [0.1, 0.9], "layer_2": [0.5, 0.2]}, label="importance")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['0.10', '0.90', '0.50', '0.20']
    """
    if isinstance(source, Capture):
        numbers, label = by_head(source, measure, where=where), label or MEASURES[measure][1]
        heads: list[Sequence[int]] = [source.heads[name] for name in numbers]
    else:
        costs: Any = source.costs if isinstance(source, Ablation) else source
        if isinstance(source, CircuitScores):
            costs = source.scores[one_of(SCORES).check("measure", measure)]
            label = label or f"{measure} score"
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
    most = float(np.max(np.abs(known), initial=0.0)) or 1.0
    digits = max(0, (2 if most >= 1 else 1) - math.floor(math.log10(most)))
    image = _draw_panel(axes, table, most, linear=True)
    axes.set_facecolor("#f4f5f7")  # cells that fewer heads leave empty
    for (i, j), x in np.ndenumerate(table):
        if np.isfinite(x):
            text = f"{round(x, digits) + 0.0:.{digits}f}"
            colour = "white" if abs(x) > 0.6 * most else _INK
            axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color=colour)
    _label_axis(axes.xaxis, [str(head) for head in names], 8)
    _label_axis(axes.yaxis, list(numbers), 8)
    axes.set_xlabel("head", fontsize=8, color=_MUTED)
    axes.spines[:].set_visible(False)
    _add_colour_bar(figure, image, axes, label)
    return figure


def _draw_map(
    picture: Floats,
    labels: tuple[list[str], list[str]],
    title: str,
    sides: tuple[str, str],
    cell: float = 0.24,
) -> Any:
    """Draw one large map with labels on both axes."""
    rows, columns = labels
    T, S = picture.shape
    longest = max(T, S, 1)
    cell = max(0.135, cell - 0.0016 * longest) if longest <= 160 else 21.6 / longest
    size = min(9.0, max(5.0, cell * 50))
    letter = size / 72 * 0.62  # approximate width of a letter in inches
    left, top = (0.35 + letter * max(map(len, x), default=1) for x in (rows, columns))
    width = max(2.0, cell * S + 1.1, 0.085 * len(title))
    figure = new_figure(left + width, top + max(1.4, cell * T) + 0.8)
    axes = figure.add_subplot()
    image = _draw_panel(axes, picture)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("bottom")
    upright = max(map(len, columns), default=0) <= 2
    _label_axis(axes.xaxis, columns, size, rotation=0 if upright else 90)
    _label_axis(axes.yaxis, rows, size)
    axes.set_ylabel(sides[0], fontsize=8, color=_MUTED)
    axes.set_xlabel(sides[1], fontsize=8, color=_MUTED)
    axes.set_title(title, fontsize=10, loc="left", pad=8)
    _add_colour_bar(figure, image, axes)
    return figure


def _select_layers(
    capture: Capture, layer: str | None, heads: Sequence[int] | None, example: int
) -> dict[str, Floats]:
    """Return the weights (heads, T, S) of one layer, or of all cross-attention, by layer name."""
    names = [name for name in capture if capture.kinds[name] == "cross"]
    names = names if layer is None else [capture.check_layer(layer)]
    if not names:
        raise ValueError(
            "`capture` must have a layer of cross-attention, or `layer` must be given. "
            f"Received: {', '.join(f'{name!r} ({kind})' for name, kind in capture.kinds.items())}"
        )
    layers = {name: select_weights(capture, name, heads, example) for name in names}
    lengths = [capture.lengths[name] for name in names]
    if len({x.shape[1:] for x in layers.values()}) > 1 or len(set(lengths)) > 1:
        raise ValueError(
            "`layer` must be given where layers of cross-attention differ in T and S. "
            f"Received: layer=None, (T, S) of {', '.join(map(str, lengths))}"
        )
    return layers


def _average(layers: Mapping[str, Floats]) -> tuple[Floats, str, str]:
    """Return the mean of all heads, and in words the layers and the number of the heads."""
    pictures = np.concatenate(list(layers.values()))
    where = next(iter(layers)) if len(layers) == 1 else f"{len(layers)} layers of cross-attention"
    count = f"{len(pictures)} head{'s' if len(pictures) > 1 else ''}"
    return pictures.mean(0), where, f"mean of {count}"


def _to_pixels(image: Any) -> Floats:
    """Convert an image to (height, width), or (height, width, 3) with colours, in [0, 1]."""
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    coloured = array.ndim == 3 and array.shape[2] == 3
    if not (array.ndim == 2 or coloured) or not array.size or array.dtype.kind not in "buif":
        raise ValueError(
            "`image` must be numbers (height, width), (height, width, 1) or (height, width, 3). "
            f"Received: {array.dtype} of shape {np.shape(image)}"
        )
    pixels = array / 255.0 if array.dtype == np.uint8 else array.astype(np.float64)
    low, high = pixels.min(), pixels.max()
    if low < 0 or high > 1:
        pixels = (pixels - low) / ((high - low) or 1.0)
    return pixels


def _find_grid(
    keys: int, shape: Sequence[int], grid: tuple[int, int] | None
) -> tuple[tuple[int, int], int]:
    """Return rows and columns of an image's patches, and the number of keys before them, 0 or 1."""
    for first, patches in enumerate((keys, keys - 1)):
        rows = round((max(patches, 0) * shape[0] / shape[1]) ** 0.5)
        columns = patches // max(rows, 1)
        square = rows * shape[1] == columns * shape[0]
        if grid is not None:
            (rows, columns), square = grid, True
        if square and rows * columns == patches > 0:
            return (rows, columns), first
    raise ValueError(
        "`grid` must be the rows and columns of patches, as many as there are keys, or one fewer (None only for "
        f"square patches). Received: grid={grid}, {keys} keys, image.shape={tuple(shape)}"
    )


def _format_token(token: Any) -> str:
    """Return a readable token: without the space marks of tokenizers, with visible whitespace."""
    text = str(token)
    for mark in ("▁", "Ġ", "##"):
        text = text.removeprefix(mark) or "␣"
    text = text.replace("\n", "⏎").replace("\t", "⇥")
    return text if text.strip() else "␣"


def _make_labels(
    capture: Capture, layer: str, **tokens: Sequence[Any] | None
) -> tuple[list[str], list[str]]:
    """Return the labels of the rows and columns of a layer's picture.

    `tokens` are those of all queries and of all keys, by argument name. Default: their positions; the keys of
    self-attention have the tokens of the queries.
    """
    T, S = capture.lengths[layer]
    (option, queries), (key_option, keys) = tokens.items()
    if keys is None and capture.kinds[layer] != "cross" and T == S:
        keys = queries

    def side(option: str, tokens: Sequence[Any] | None, length: int, places: Any) -> list[str]:
        if tokens is None:
            return [str(place) for place in places]
        if isinstance(tokens, str) or len(tokens) != length:
            raise ValueError(
                f"`{option}` must be a list of {length} tokens, one for each position. "
                f"Received: {len(tokens)}{' characters' if isinstance(tokens, str) else ''}"
            )
        return [_format_token(tokens[place]) for place in places]

    columns = range(0, S, capture.cells[layer][1])
    return side(option, queries, T, capture.rows[layer]), side(key_option, keys, S, columns)


def _draw_panel(axes: Any, numbers: Floats, most: float | None = None, linear: bool = False) -> Any:
    """Draw numbers (rows, columns). Colours follow the square root, which makes small weights visible.

    Args:
        axes, numbers: the numbers, drawn with a signed scale if any is negative.
        most: the number with the darkest colour. Default: the largest.
        linear: whether colours follow the numbers themselves, as signed ones always do.
    """
    from matplotlib.colors import Normalize, PowerNorm

    signed = bool(np.nanmin(numbers, initial=0.0) < 0)
    most = most or float(np.nanmax(np.abs(numbers), initial=0.0)) or 1.0
    low = -most if signed else 0.0
    norm = Normalize(low, most) if signed or linear else PowerNorm(0.5, low, most)
    colours = _SIGNED if signed else _WEIGHTS
    image = axes.imshow(numbers, colours, norm, aspect="auto", interpolation="nearest")
    axes.tick_params(length=0)
    axes.spines[:].set_color("#c5ccd3")
    axes.spines[:].set_linewidth(0.6)
    return image


def _label_axis(axis: Any, texts: Sequence[str], size: float, **options: Any) -> None:
    """Label positions 0, 1, ..., or every n-th if there are too many."""
    step = max(1, -(-len(texts) // _MOST_LABELS))
    # Dollar signs in a token must not become formulas.
    axis.set_ticks(
        range(0, len(texts), step), texts[::step], fontsize=size, parse_math=False, **options
    )


def _add_colour_bar(figure: Any, image: Any, axes: Any, label: str | None = None) -> None:
    """Add a narrow colour bar of fixed width; a bar of weights has a few round ticks."""
    width, height = figure.get_size_inches()
    bar = figure.colorbar(
        image, ax=axes, fraction=0.3 / width, pad=0.12 / width, aspect=height / 0.16
    )
    bar.set_label("attention weight" if label is None else label, fontsize=8, color=_MUTED)
    low, high = image.get_clim()
    if label is None and low == 0:
        ticks = [x for x in _TICKS if x <= high]
        bar.set_ticks(ticks, labels=[f"{x:g}" for x in ticks])
    bar.ax.tick_params(labelsize=7, length=0)
    bar.outline.set_visible(False)
