"""`Mask.plot`: a mask as a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.figure import new_figure

_SEEN, _HIDDEN = "#1f5a94", "#eef1f4"
_GRID_UP_TO = 64  # positions; beyond, lines between the cells would cover them


def plot_mask(allowed: NDArray[np.bool_], title: str) -> Any:
    """Return a figure of booleans (T, S): a row a query, dark for "attend"."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    T, S = allowed.shape
    longest = max(T, S, 1)
    side = min(6.0, max(2.2, 0.16 * longest))
    figure = new_figure(1.1 + side * max(S / longest, 0.25), 1.2 + side * max(T / longest, 0.25))
    axes = figure.add_subplot()
    axes.imshow(
        allowed,
        cmap=ListedColormap([_HIDDEN, _SEEN]),
        vmin=0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, max(S, 1) - 0.5, max(T, 1) - 0.5, -0.5),
    )
    if longest <= _GRID_UP_TO:
        axes.set_xticks(np.arange(S + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(T + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True, nbins=6)
    axes.tick_params(which="both", length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("key", fontsize=9)
    axes.set_ylabel("query", fontsize=9)
    axes.set_title(title, fontsize=10, loc="left")
    kinds = [
        Patch(color=_SEEN, label="attend"),
        Patch(facecolor=_HIDDEN, edgecolor="#c5ccd3", label="not"),
    ]
    figure.legend(handles=kinds, loc="outside lower left", ncols=2, fontsize=8, frameon=False)
    return figure
