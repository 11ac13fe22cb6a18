"""Reads heed's source and reports where it breaks the floors (see CONTRIBUTING.md).

`breaches(package)` takes the folder of a package and returns one line for each breach, so tests can run it on
made-up trees.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# A part is a folder or a file right below src/heed. A file imports from lower floors and from its own part, and no
# modules import each other in a circle.
FLOORS = {
    "byte_pairs": 0,
    "config": 1,
    "errors": 0.5,  # below those that raise them, above `install`, which says what helps
    "figure": 1,
    "files": 0,
    "_fonts": 0,
    "install": 0,
    "keras_modules": 1,
    "lazy": 0,
    "npz": 1,
    "number_checks": 0,
    "suggestions": 0,
    "patching": 1,
    "ray_connection": 1,
    "processes": 1,
    "weights": 0,
    "ops": 2,
    "layers": 3,
    "decoding": 3.5,  # below models, which offer `generate` as theirs
    "models": 4,
    "inspect": 4,
    "acceleration": 4,
    "distributed": 5,
    "seq2seq": 5,
    "export": 5,
    "environment": 5,
    "_loading": 5,
    "cli": 6,
    "__main__": 7,
    "__init__": 7,
}
# Private attributes that Keras, TensorFlow and Python have, too.
FOREIGN_ATTRIBUTES = {
    *("_dropout_layer", "_gate_dense", "_key_dense", "_layers", "_output_dense", "_query_dense"),
    *("_registry", "_replace", "_value_dense"),
}
# Imported by `import heed`; a test checks that nothing heavy is among them.
EAGER = {"_loading"}
# Only these files import a framework: other backends can follow.
FRAMEWORKS = {"tensorflow", "jax", "torch"}
FRAMEWORK_FILES = ("ops/backends/*", "seq2seq/training/*", "export/*", "distributed/*")
# What differs between the classes of these files is a method of theirs: no other file asks for their type.
UNASKED = ("ops/mask_rules.py", "ops/scores.py")
BASE_PACKAGES = {"keras", "numpy", "optree"}
EXTRA_PACKAGES = {
    *(
        "ai_edge_litert",
        "anyio",
        "ctranslate2",
        "fastapi",
        "gguf",
        "httptools",
        "keras_hub",
        "llama_cpp",
        "matplotlib",
        "num2words",
        "polib",
        "prometheus_client",
        "pydantic",
    ),
    *(
        "onnx",
        "onnxruntime",
        "ray",
        "regex",
        "sacrebleu",
        "sentencepiece",
        "shtab",
        "starlette",
        "tensorboard",
        "tokenizers",
        "tqdm",
        "uvicorn",
        "yaml",
    ),
}
# Only imported by a command that has reported missing packages before.
EXTRA_FILES = ("seq2seq/serving/*", "export/onnx/*", "export/runners/*")


@dataclass(frozen=True)
class Import:
    """An imported module, by its absolute name, and the line of the import."""

    module: str
    line: int
    at_import_time: bool


@dataclass
class _Imports(ast.NodeVisitor):
    """Collects the imports of one file, including those inside functions and `import_module("...")`."""

    package: str  # the dotted name of the file's package, for relative imports
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
        # `from heed import ops` imports heed.ops: with the name appended, both forms name the part.
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


@functools.cache
def _nodes_of_text(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def _nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a file, the module first."""
    return _nodes_of_text(path.read_text(encoding="utf-8"))


def imports_of(path: Path, package: Path) -> list[Import]:
    """Return all imports of the file `path` of the package folder `package`."""
    dotted = ".".join([package.name, *path.relative_to(package).parent.parts])
    return _imports_of_text(path.read_text(encoding="utf-8"), dotted)


@functools.cache
def _imports_of_text(text: str, package: str) -> list[Import]:
    visitor = _Imports(package)
    visitor.visit(_nodes_of_text(text)[0])
    return visitor.found


def breaches(package: Path) -> list[str]:
    """Return one line for each breach in the package whose folder is `package`."""
    found = [
        f"{path.relative_to(package).as_posix()}:{line}: {message}"
        for path in sorted(package.rglob("*.py"))
        for line, message in _breaches_of_file(path, package)
    ]
    found += _private_reads(package)
    found += _twins(package)
    return found + [
        f"import each other: {', '.join(sorted(cycle))}" for cycle in import_cycles(package)
    ]


def modules_of(package: Path) -> dict[str, Path]:
    """Return the modules of a package by their dotted names; a folder's is its `__init__.py`."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def wrong_doors(package: Path) -> list[str]:
    """Return a line for each module whose name begins with `_` though another folder imports it, or the reverse.

    And for each that has the name of a standard one, or of a package that heed imports.
    """
    names = modules_of(package)
    users = defaultdict(set)
    for path in names.values():
        for found in imports_of(path, package):
            module = found.module
            while module and module not in names:
                module = module.rpartition(".")[0]
            users[module].add(path.parent)
    wrong = []
    for name, path in names.items():
        if path.stem in ("__init__", "__main__"):
            continue
        others = sorted(
            x.relative_to(package.parent).as_posix() for x in users[name] - {path.parent}
        )
        if others and path.stem.startswith("_"):
            wrong.append(
                f"{name} begins with `_`, and other folders import it: {', '.join(others)}"
            )
        elif not others and not path.stem.startswith("_"):
            wrong.append(f"{name}: no other folder imports it, so its name begins with `_`")
        if path.stem in sys.stdlib_module_names | BASE_PACKAGES | EXTRA_PACKAGES:
            wrong.append(f"{name} has the name of a module of others")
    return wrong


def test_names(root: Path) -> tuple[list[str], list[str]]:
    """Return the test files of a repository that are named after what they test, and all others.

    `tests/a/test_b.py` and `tests/a/test_b_aspect.py` are named after `src/heed/a/b.py`, `_b.py` or the folder `b`;
    those of `tests/native` after `native/`; those of `tests` also after a part of the repository, or a module of the
    tests.
    """
    tests = root / "tests"
    tested = {
        *_names_below(root / "src" / "heed", "**/*"),
        *(f"native/{name}" for name in _names_below(root / "native", "**/*")),
        *_names_below(root, "*"),
        *_names_below(tests, "*"),
    }
    named, others = [], []
    for path in sorted(tests.rglob("test_*.py")):
        name = path.relative_to(tests).as_posix()
        words = path.stem.removeprefix("test_").split("_")
        places = {
            path.relative_to(tests).with_name("_".join(words[:n])).as_posix()
            for n in range(1, len(words) + 1)
        }
        (named if places & tested else others).append(name)
    return named, others


def _names_below(folder: Path, pattern: str) -> Iterator[str]:
    """Return modules, C++ files, texts and folders without suffixes, leading dots and underscores."""
    for path in folder.glob(pattern):
        if path.is_dir() or path.suffix in (".cc", ".h", ".md", ".py"):
            yield "/".join(x.lstrip("._") for x in path.relative_to(folder).with_suffix("").parts)


_LITERAL = r"""[rf]*(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\s*"""


def long_matches(path: Path, words: int) -> list[str]:
    """Return the places of a test file whose `match=` has more words than these: a sentence, not its rule."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(rf"\bmatch=(?:\(\s*)?((?:{_LITERAL})+)", text):
        plain = re.sub(r"\b[rf]+(?=[\"'])|\\[a-z]|\{[^}]*\}", "", match[1])
        if len(re.findall("[A-Za-z]{2,}", plain)) > words:
            found.append(
                f"{path.name}:{text[: match.start()].count(chr(10)) + 1}: {match[1].strip()}"
            )
    return found


def _twins(package: Path) -> Iterator[str]:
    """Yield each function, class or module of a portable form with the name of one for all backends."""
    folder = package / "ops" / "backends"
    # Each backend reads what `core` says of the native library.
    files = [x for x in folder.glob("shared/*.py") if x.stem not in ("__init__", "core")]
    shared = {path.stem for path in files}
    names = {name for path in files for name in _defined(path)}
    for path in sorted(folder.glob("*/**/*.py")):
        relative = path.relative_to(folder)
        if relative.parts[0] == "shared":
            continue
        twins = [name for name in _defined(path) if name in names]
        if path.parent.name == "portable" and path.stem in shared:
            twins.append(path.stem)
        for name in twins:
            yield f"ops/backends/{relative.as_posix()}: `{name}` has a twin in ops/backends/shared"


def _defined(path: Path) -> list[str]:
    """Return the public functions and classes of a module."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    defined = [x.name for x in body if isinstance(x, (ast.ClassDef, ast.FunctionDef))]
    return [name for name in defined if not name.startswith("_")]


def _private_reads(package: Path) -> Iterator[str]:
    """Yield each read of `x._name`, x not being self, where only classes of other parts have that attribute."""
    reads, owners = [], defaultdict(set)
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        part = relative.parts[0].removesuffix(".py")
        for node in _nodes(path):
            if isinstance(node, ast.ClassDef):
                for member in ast.walk(node):
                    if isinstance(member, ast.FunctionDef):
                        owners[member.name].add(part)
            elif isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
                of_self = ast.unparse(node.value) in ("self", "cls", "super()")
                if of_self and isinstance(node.ctx, ast.Store):
                    owners[node.attr].add(part)
                elif not of_self:
                    reads.append((part, f"{relative.as_posix()}:{node.lineno}", node))
    for part, place, node in reads:
        if (
            (others := owners[node.attr])
            and part not in others
            and node.attr not in FOREIGN_ATTRIBUTES
        ):
            yield (
                f"{place}: reads `{ast.unparse(node)}`, which is private to {' and '.join(others)}"
            )


def import_cycles(package: Path) -> set[frozenset[str]]:
    """Group of modules that import each other in a circle, be it inside functions or for type checking."""
    names = {path: name for name, path in modules_of(package).items()}
    known = set(names.values()) - {package.name}

    def module_of(name: str) -> str:
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name

    imported = {
        name: {module_of(found.module) for found in imports_of(path, package)} - {name, ""}
        for path, name in names.items()
    }

    def reachable(name: str) -> set[str]:
        seen, waiting = set(), [*imported[name]]
        while waiting:
            if (following := waiting.pop()) not in seen:
                seen.add(following)
                waiting += imported[following]
        return seen

    reached = {name: reachable(name) for name in known}
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in known
        if name in reached[name]
    }


def _breaches_of_file(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    relative = path.relative_to(package)
    part = relative.parts[0].removesuffix(".py")
    if part not in FLOORS:
        yield 1, f"`{part}` has no floor: give it one"
        return
    nodes = _nodes(path)
    for node in nodes:
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert: raise ValueError or TypeError"
    for file in UNASKED:
        if relative.as_posix() != file:
            yield from _type_tests(nodes, Path(file).stem)
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


def _type_tests(nodes: list[ast.AST], module: str) -> Iterator[tuple[int, str]]:
    """Yield each `isinstance(rule, Window)` and the like, of the classes of a module."""
    classes = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] == module
        for alias in node.names
    }
    for node in nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            for part in (part for argument in node.args[1:] for part in ast.walk(argument)):
                name = ast.unparse(part) if isinstance(part, ast.Name | ast.Attribute) else ""
                if name in classes or name.rpartition(".")[0].split(".")[-1] == module:
                    yield node.lineno, f"{node.func.id} of {name}: ask it itself"


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
    if top == "typing_extensions" and not found.at_import_time:  # which every type checker brings
        return None
    if top not in EXTRA_PACKAGES:
        return f"imports `{top}`, which pyproject.toml does not bring"
    free = any(fnmatch.fnmatch(relative, pattern) for pattern in EXTRA_FILES)
    if found.at_import_time and not free:
        return f"imports `{top}` at import time: it comes with an extra, import it where it is used"
    return None


# Native folders: each includes its own files and those of lower floors. An adapter has a folder of its own and
# includes only the C interface of the core, and what adapters share.
NATIVE_FLOORS = {
    "include": 0,
    "simd": 1,
    "kernels": 2,
    "decoder/packs": 3,
    "decoder": 4,
    ".": 5,
    "adapters/shared": 6,
    "adapters/*": 7,
}
# heed.h is C. Kernels are compiled for instruction sets that a machine may lack: no inline function of the standard
# library. The compiler's own are always inlined.
SYSTEM_HEADERS = {
    "include": {"stdint.h"},
    "simd": {"arm_neon.h", "cstddef", "cstdint", "immintrin.h"},
    "kernels": {"cstddef", "cstdint", "immintrin.h"},
    "decoder/packs": {"cstdint"},
    "decoder": {"cstddef", "cstdint"},
}


def native_breaches(folder: Path) -> list[str]:
    """Return one line for each include in `native/` of a higher floor, or of a header that its floor must not use.

    And one for each variable that the first call initialises.
    """
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
            if re.match(r"\s+static (?!constexpr |thread_local )[^(;]*=", line):
                found.append(f"{own}:{number}: a lazy static: its lock stays closed in a child")
    return found


def _native_part(own: Path) -> str:
    """Return the part of `native/` that a file belongs to; adapters lie one folder deeper."""
    folder = own.parent
    is_adapter = folder.parent == Path("adapters") and folder.name != "shared"
    return "adapters/*" if is_adapter else str(folder)


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
    if part.startswith("adapters") and _native_part(target) not in ("include", "adapters/shared"):
        return f"`{own.parent}` includes `{target}`: of the core an adapter knows heed.h alone"
    if NATIVE_FLOORS[_native_part(target)] >= NATIVE_FLOORS[part]:
        return f"`{own.parent}` includes `{target}` of a higher floor"
    return None
