"""A picture of where the decoder looked: cross-attention, each head and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed._install import how_to_install
from heed.seq2seq.attention import attention_of
from heed.seq2seq.errors import TaskError
from heed.seq2seq.picture_format import picture_format
from heed.seq2seq.run_folder import write_atomically
from heed.seq2seq.translate import Translator

_MAP = "cividis"  # light and dark order the same for every kind of colour vision


def cross_attention(
    translator: Translator, line: str, language: str | None = None
) -> tuple[list[str], list[str], NDArray[np.float32]]:
    """Translates a line and says where the decoder looked for each token.

    Args:
        translator: the run's model.
        line: what to translate.
        language: for numbers, one of the run's languages.

    Returns:
        S source labels, T target labels (the last is the end), and the weights
        (layers, N, T, S): row t says where the decoder looked when it wrote target token t. The
        digits of a number are in reading order.
    """
    found = attention_of(translator, line, language)
    return found.source, found.written, found.cross


def draw_cross_attention(
    path: Path,
    columns: Sequence[str],
    rows: Sequence[str],
    weights: NDArray[np.float32],
    title: str = "",
) -> Path:
    """Draws cross-attention weights: the mean over all heads, and each head of each layer.

    Args:
        path: the file to write; .png, .svg or .pdf says what it becomes.
        columns: S source labels.
        rows: T target labels.
        weights: (layers, N, T, S), each row adding up to 1.
        title: a line above the picture.

    Returns:
        `path`.

    Raises:
        TaskError: for another kind of file, or without the matplotlib library.
        OSError: if the file cannot be written.
    """
    kind = picture_format(path)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise TaskError(f"pictures need matplotlib: {how_to_install('demo')}") from None
    layers, heads, T, S = weights.shape
    # Sizes in inches from the numbers of cells and the labels, so that these never overlap.
    widest = max(map(len, columns))
    mean_width = 2.2 + S * max(0.42, 0.1 * widest + 0.06)
    height, head_width = 1.6 + max(0.3 * T, 1.5 * layers), min(2.2, max(1.0, 0.2 * S))
    figure = Figure(
        figsize=(mean_width + heads * head_width + 1.6, height), layout="constrained", dpi=150
    )
    FigureCanvasAgg(figure)
    parts: Any = figure.subfigures(1, 2, width_ratios=[mean_width, heads * head_width + 1.2])
    left, right = parts
    figure.suptitle(title, fontsize=12, fontweight="bold")

    axes = left.subplots()
    image = _panel(axes, weights.mean(axis=(0, 1)), "mean of all heads")
    axes.set_xticks(range(S), columns)
    axes.set_yticks(range(T), rows)
    axes.set_xlabel("read: the source")
    axes.set_ylabel("written: the target, from top to bottom")

    grid = right.subplots(layers, heads, squeeze=False)
    for layer in range(layers):
        for head in range(heads):
            small = grid[layer][head]
            _panel(small, weights[layer, head], f"head {head + 1}")
            if widest <= 2 and S <= 10:
                small.set_xticks(range(S), columns, fontsize=6)
            else:
                small.set_xticks([])
            small.set_yticks([])
        grid[layer][0].set_ylabel(f"layer {layer + 1}")
    bar = right.colorbar(image, ax=grid.ravel().tolist(), fraction=0.04, pad=0.02)
    bar.set_label("attention weight")
    write_atomically(path, lambda file: figure.savefig(file, format=kind))
    return path


def _panel(axes: Any, weights: NDArray[np.float32], title: str) -> Any:
    image = axes.imshow(weights, cmap=_MAP, vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_title(title, fontsize=9)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image
