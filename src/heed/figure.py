"""An empty matplotlib figure outside matplotlib's global state."""

from __future__ import annotations

import functools
import io
import warnings
from typing import Any

from heed._fonts import set_fonts
from heed.install import how_to_install


def new_figure(width: float, height: float) -> Any:
    """Make a `matplotlib.figure.Figure`; save it with `savefig("x.png")` or `("x.svg")`; notebooks show it.

    When it is drawn, its texts get fonts of this machine that have their letters. One warning names letters that no
    font has; `set_fonts` returns it instead, for those who say it in another way.

    Args:
        width, height: in inches.

    Raises:
        ImportError: without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        figure: Any = _figure_type()(figsize=(width, height), layout="constrained", dpi=150)
    except ImportError:
        raise ImportError(f"pictures need matplotlib: {how_to_install('demo')}") from None
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)

    def png() -> bytes:
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()

    figure._repr_png_ = png  # notebooks call it
    return figure


@functools.cache
def _figure_type() -> Any:
    """Return the class of figures that choose their fonts."""
    from matplotlib.figure import Figure

    class FigureWithFonts(Figure):
        _told = ""

        def set_fonts(self) -> str:
            """Give each text fonts that have its letters; return what to say about those that no font has."""
            self._told = set_fonts(self)
            return self._told

        def draw(self, renderer: Any) -> None:
            """Draw the figure."""
            before = self._told
            if self.set_fonts() not in ("", before):
                warnings.warn(self._told, stacklevel=2)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
                super().draw(renderer)

    return FigureWithFonts
