"""What the pictures share: colours, labels of tokens, panels of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.inspect._capture import Capture

Floats = NDArray[np.floating[Any]]

# One hue from light to dark, and two that meet in white: both read the same for every kind of colour vision, the first
# also in print.
WEIGHTS, SIGNED = "Blues", "PuOr_r"
MUTED, INK = "#5b6670", "#1b2126"
_TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1)
_MOST_LABELS = 160  # positions beyond which only some are labelled


def shown(token: Any) -> str:
    """A token as people read it: marks of spaces go, what has no shape of its own gets one."""
    text = str(token)
    for mark in ("▁", "Ġ", "##"):
        text = text.removeprefix(mark) or "␣"
    text = text.replace("\n", "⏎").replace("\t", "⇥")
    return text if text.strip() else "␣"


def labels(
    option: str, tokens: Sequence[Any] | None, length: int, places: Sequence[int]
) -> list[str]:
    """What stands at the rows or columns of a picture.

    Args:
        option: the argument's name.
        tokens: of all positions, or None for their numbers.
        length: how many positions there are.
        places: those of the rows or columns.

    Raises:
        ValueError: if there are more or fewer tokens than positions.
    """
    if tokens is None:
        return [str(place) for place in places]
    if isinstance(tokens, str) or len(tokens) != length:
        raise ValueError(
            f"`{option}` must be a list of {length} tokens, one for each position. "
            f"Received: {len(tokens)}{' characters' if isinstance(tokens, str) else ''}"
        )
    return [shown(tokens[place]) for place in places]


def picture_places(capture: Capture, layer: str) -> tuple[Sequence[int], Sequence[int]]:
    """Which query and key each row and column of a layer's picture is, or begins with."""
    return capture.rows[layer], range(0, capture.lengths[layer][1], capture.cells[layer][1])


def weights_panel(axes: Any, weights: Floats, most: float | None = None) -> Any:
    """Draws weights (rows, columns); colours grow with their square root, so that small ones show.

    Args:
        axes: where.
        weights: drawn signed if some are negative.
        most: the darkest weight. Default: the largest.
    """
    from matplotlib.colors import Normalize, PowerNorm

    signed = bool(np.nanmin(weights, initial=0.0) < 0)
    most = most or float(np.nanmax(np.abs(weights), initial=0.0)) or 1.0
    norm = Normalize(-most, most) if signed else PowerNorm(0.5, 0.0, most)
    image = axes.imshow(
        weights,
        cmap=SIGNED if signed else WEIGHTS,
        norm=norm,
        aspect="auto",
        interpolation="nearest",
    )
    axes.tick_params(length=0)
    axes.spines[:].set_color("#c5ccd3")
    axes.spines[:].set_linewidth(0.6)
    return image


def label_axis(axis: Any, texts: Sequence[str], size: float, **options: Any) -> None:
    """Labels positions 0, 1, ...: all, or so many that they do not touch."""
    step = -(-len(texts) // _MOST_LABELS)
    # A token may hold dollar signs, which would be formulas.
    axis.set_ticks(
        range(0, len(texts), step), texts[::step], fontsize=size, parse_math=False, **options
    )


def colour_bar(figure: Any, image: Any, axes: Any, label: str = "attention weight") -> None:
    """The scale of a picture, with a few rounded numbers."""
    bar = slim_bar(figure, image, axes, label)
    low, high = image.get_clim()
    if low == 0:
        bar.set_ticks([x for x in _TICKS if x <= high], minor=False)
        bar.set_ticklabels([f"{x:g}" for x in _TICKS if x <= high])


def slim_bar(figure: Any, image: Any, axes: Any, label: str) -> Any:
    """A scale as wide as a letter is high, however large the picture."""
    width, height = figure.get_size_inches()
    bar = figure.colorbar(
        image, ax=axes, fraction=0.3 / width, pad=0.12 / width, aspect=height / 0.16
    )
    bar.set_label(label, fontsize=8, color=MUTED)
    bar.ax.tick_params(labelsize=7, length=0)
    bar.outline.set_visible(False)
    return bar
