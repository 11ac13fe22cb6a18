"""Reads heed's source and says where it breaks the floors (see CONTRIBUTING.md).

`breaches(package)` takes the folder of a package and returns one line for each breach, so that the
checker itself can be tested on made-up trees.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# A part is a folder or a file right below src/heed. A file imports from lower floors and from its
# own part.
FLOORS = {
    "_figure": 1,
    "_install": 0,
    "_keras": 1,
    "_npz": 1,
    "_numbers": 1,
    "ops": 2,
    "layers": 3,
    "decoding": 3.5,  # below models, which offer `generate` as theirs
    "models": 4,
    "inspect": 4,
    "acceleration": 4,
    "seq2seq": 5,
    "export": 5,
    "_info": 5,
    "_loading": 5,
    "cli": 6,
    "__main__": 7,
    "__init__": 7,
}
# What `import heed` brings; a test sees that it brings nothing heavy.
EAGER = {"_loading"}
# Everything else uses keras.ops, so that other backends can follow.
FRAMEWORKS = {"tensorflow", "jax", "torch"}
FRAMEWORK_FILES = ("ops/backends/*", "seq2seq/training*.py", "export/*")
BASE_PACKAGES = {"keras", "numpy", "optree"}
EXTRA_PACKAGES = {
    *(
        "ai_edge_litert",
        "anyio",
        "ctranslate2",
        "fastapi",
        "httptools",
        "matplotlib",
        "num2words",
        "polib",
        "prometheus_client",
        "pydantic",
    ),
    *(
        "onnx",
        "onnxruntime",
        "sacrebleu",
        "sentencepiece",
        "shtab",
        "starlette",
        "tensorboard",
        "tqdm",
        "uvicorn",
        "yaml",
    ),
}
# What one command alone imports, which has said before what is missing.
EXTRA_FILES = ("seq2seq/serving/*", "export/onnx/*", "export/runners/*")


@dataclass(frozen=True)
class Import:
    """One imported module, absolute, with where it stands."""

    module: str
    line: int
    at_import_time: bool


@dataclass
class _Imports(ast.NodeVisitor):
    """Collects the imports of one file, also those inside functions and `import_module("...")`."""

    package: str  # the dotted name of the package that the file stands in, for relative imports
    found: list[Import] = field(default_factory=list)
    _inside: int = 0  # functions and `if TYPE_CHECKING:` blocks around the node

    def _add(self, module: str, node: ast.stmt | ast.expr) -> None:
        self.found.append(Import(module, node.lineno, at_import_time=self._inside == 0))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            base = ".".join(
                [*parents[: len(parents) - node.level + 1], *filter(None, [node.module])]
            )
        # `from heed import ops` imports heed.ops: with the name, both forms tell the part.
        for alias in node.names:
            self._add(f"{base}.{alias.name}", node)

    def visit_Call(self, node: ast.Call) -> None:
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        if name in ("import_module", "__import__") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                self._add(first.value, node)
        self.generic_visit(node)

    def _visit_inside(self, node: ast.AST) -> None:
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_inside  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        self._inside += test in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for child in node.body:
            self.visit(child)
        self._inside -= test in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for child in node.orelse:
            self.visit(child)


def imports_of(path: Path, package: Path) -> list[Import]:
    """All imports of the file `path` of the package folder `package`."""
    dotted = ".".join([package.name, *path.relative_to(package).parent.parts])
    visitor = _Imports(dotted)
    visitor.visit(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return visitor.found


def breaches(package: Path) -> list[str]:
    """One line for each breach in the package whose folder is `package`."""
    return [
        f"{path.relative_to(package).as_posix()}:{line}: {message}"
        for path in sorted(package.rglob("*.py"))
        for line, message in _breaches_of_file(path, package)
    ]


def _breaches_of_file(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    relative = path.relative_to(package)
    part = relative.parts[0].removesuffix(".py")
    text = path.read_text(encoding="utf-8")
    if part not in FLOORS:
        yield 1, f"`{part}` has no floor: give it one"
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert: raise ValueError or TypeError"
    for found in imports_of(path, package):
        top = found.module.split(".")[0]
        if top == package.name:
            message = _own_import(part, found)
        elif top in FRAMEWORKS:
            message = _framework_import(relative.as_posix(), found)
        else:
            message = _foreign_import(relative.as_posix(), top, found)
        if message:
            yield found.line, message


def _own_import(part: str, found: Import) -> str | None:
    names = found.module.split(".")
    if len(names) == 1:
        return "imports the whole package: import the part that is needed"
    target = names[1]
    if target.startswith("__") and target not in FLOORS:
        return None  # __version__ and the like
    if target not in FLOORS:
        return f"imports `{found.module}` through the package: import it from where it lives"
    if part == "__init__" and found.at_import_time and target not in EAGER:
        return f"imports `{target}` eagerly: `import heed` is lazy"
    private = next((name for name in names[2:] if name.startswith("_")), None)
    if target != part and private and not private.startswith("__"):
        return f"imports `{found.module}`: `{private}` is private to `{target}`"
    if target == part or FLOORS[target] < FLOORS[part]:
        return None
    return (
        f"`{part}` (floor {FLOORS[part]}) imports `{target}` (floor {FLOORS[target]}): "
        "only lower floors are allowed"
    )


def _framework_import(relative: str, found: Import) -> str | None:
    if any(fnmatch.fnmatch(relative, pattern) for pattern in FRAMEWORK_FILES):
        return None
    return f"imports {found.module}: only ops/backends, the training loop and export do"


def _foreign_import(relative: str, top: str, found: Import) -> str | None:
    if top in sys.stdlib_module_names or top in BASE_PACKAGES:
        return None
    if top not in EXTRA_PACKAGES:
        return f"imports `{top}`, which pyproject.toml does not bring"
    free = any(fnmatch.fnmatch(relative, pattern) for pattern in EXTRA_FILES)
    if found.at_import_time and not free:
        return f"imports `{top}` at import time: it comes with an extra, import it where it is used"
    return None


# Native folders: each includes its own files and those of lower floors. An adapter, in a folder of its own, includes
# nothing of the core but its C interface.
NATIVE_FLOORS = {"include": 0, "simd": 1, "kernels": 2, "decoder": 3, ".": 4, "adapters/*": 5}
# heed.h is C. Kernels are compiled for instruction sets that a machine may lack: no inline function of the standard
# library. The compiler's own are always inlined.
SYSTEM_HEADERS = {
    "include": {"stdint.h"},
    "simd": {"cstddef", "cstdint", "immintrin.h"},
    "kernels": {"cstddef", "cstdint", "immintrin.h"},
    "decoder": {"cstddef", "cstdint"},
}


def native_breaches(folder: Path) -> list[str]:
    """One line for each include of `native/` that climbs, or brings what its floor must not have."""
    found = []
    for path in sorted(path for suffix in ("*.h", "*.cc") for path in folder.rglob(suffix)):
        own = path.relative_to(folder)
        if _native_part(own) not in NATIVE_FLOORS:
            found.append(f"{own}:1: `{own.parent}` has no floor: give it one")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = re.match(r'\s*#include\s+([<"])([^>"]+)[>"]', line)
            if match and (message := _include(*match.groups(), path, folder)):
                found.append(f"{own}:{number}: {message}")
    return found


def _native_part(own: Path) -> str:
    """The part of `native/` that a file belongs to; an adapter lies one folder deeper than the others."""
    folder = own.parent
    return "adapters/*" if folder.parent == Path("adapters") else str(folder)


def _include(kind: str, name: str, path: Path, folder: Path) -> str | None:
    own = path.relative_to(folder)
    part = _native_part(own)
    if kind == "<":
        if name not in SYSTEM_HEADERS.get(part, {name}):
            return f"includes <{name}>: `{part}` uses the compiler alone"
        return None
    target = (path.parent / name).resolve().relative_to(folder.resolve())
    if target.parent == own.parent:
        return None
    if part == "adapters/*" and _native_part(target) != "include":
        return f"`{own.parent}` includes `{target}`: of the core an adapter knows heed.h alone"
    if NATIVE_FLOORS[_native_part(target)] >= NATIVE_FLOORS[part]:
        return f"`{own.parent}` includes `{target}` of a higher floor"
    return None
