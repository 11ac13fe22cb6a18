"""Runs the code of a notebook as Jupyter would, without Jupyter: `python -m tests.notebooks FILE`.

Prints the number of pictures that it shows: figures of `plt.show()`, and last values of cells that draw themselves.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

_PICTURES = ("_repr_png_", "_repr_html_", "savefig")


def cells(path: Path, kind: str) -> list[str]:
    """Return the sources of a notebook's cells of a kind, "code" or "markdown"."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(x["source"]) for x in notebook["cells"] if x["cell_type"] == kind]


def run(path: Path) -> int:
    """Run the code cells in one namespace, and return the number of pictures."""
    import matplotlib.pyplot as plt

    pictures = 0

    def show() -> None:
        nonlocal pictures
        pictures += len(plt.get_fignums())
        plt.close("all")

    plt.show = show
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(cells(path, "code"), 1):
        place = f"{path.name}, code cell {number}"
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, place, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), place, "eval"), names)
            pictures += any(hasattr(value, name) for name in _PICTURES)
        show()
    return pictures


if __name__ == "__main__":
    print(run(Path(sys.argv[1])))
