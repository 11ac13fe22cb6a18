"""An empty matplotlib figure outside matplotlib's global state."""

from __future__ import annotations

import io
from typing import Any

from heed._install import how_to_install


def new_figure(width: float, height: float) -> Any:
    """Makes a `matplotlib.figure.Figure`; save it with `savefig("x.png")` or `("x.svg")`; notebooks show it.

    Args:
        width, height: in inches.

    Raises:
        ImportError: without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f"pictures need matplotlib: {how_to_install('demo')}") from None
    figure: Any = Figure(figsize=(width, height), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)

    def png() -> bytes:
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()

    figure._repr_png_ = png  # notebooks call it
    return figure
