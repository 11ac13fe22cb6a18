"""The directive `names`, which documents public names of a part of heed, and the hooks that format them.

.. names:: heed.ops

   dot_product_attention
   Mask
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any

from docstrings import argument_types, render
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PARTS = (
    "heed",
    "heed.ops",
    "heed.layers",
    "heed.models",
    "heed.inspect",
    "heed.seq2seq",
    "heed.export",
    "heed.distributed",
)
# Methods by which Keras runs a layer or a model; the docstring of the class has what users need.
_OF_KERAS = {
    "build",
    "build_from_config",
    "call",
    "compute_mask",
    "compute_output_shape",
    "compute_output_spec",
    "from_config",
    "get_build_config",
    "get_config",
    "quantize",
}
# Types that a reader knows; others are shown if they are public, and aliases of heed's own are not.
_KNOWN_TYPES = set(
    "bool bytes dict float int list object set str tuple None Callable Iterable Mapping Path Sequence".split()
)
_CODE = re.compile(r"(?:heed\.)?([A-Za-z_][\w.]*)")


def public_objects() -> dict[str, Any]:
    """Return every public object by its documented name, such as "heed.ops.Mask"."""
    found = {}
    for part in PARTS:
        module = importlib.import_module(part)
        for name in module.__all__:
            found[f"{part}.{name}"] = getattr(module, name)
    return found


def members(cls: type) -> list[str]:
    """Return the public methods and properties that a class of heed documents itself."""
    found = {}
    for base in cls.__mro__:
        if not base.__module__.startswith("heed."):
            continue
        for name, value in vars(base).items():
            function = getattr(value, "__func__", value)
            own = inspect.isfunction(function) or isinstance(value, property)
            if own and not name.startswith("_") and name not in _OF_KERAS and inspect.getdoc(value):
                found.setdefault(name, None)
    return list(found)


class Links:
    """Finds the documented object that a piece of code in a docstring names."""

    def __init__(self) -> None:
        self._targets: dict[str, str] = {}
        for full, value in public_objects().items():
            if inspect.ismodule(value) or not callable(value):
                continue
            part, _, name = full.rpartition(".")
            # `heed.Mask` and `heed.ops.Mask` are one object, documented once.
            full = f"heed.ops.{name}" if part == "heed" and hasattr(_ops(), name) else full
            self._targets[full.removeprefix("heed.")] = full
            self._targets.setdefault(name, full)
            if inspect.isclass(value):
                for member in members(value):
                    self._targets[f"{full.removeprefix('heed.')}.{member}"] = f"{full}.{member}"
                    self._targets.setdefault(f"{name}.{member}", f"{full}.{member}")

    def find(self, code: str, around: str, arguments: set[str]) -> str | None:
        """Return the object, unless it is the one around the code, or an argument has its name."""
        match = _CODE.match(code)
        if not match or match[1] in arguments or re.search(r"[<>`\\]", code):
            return None
        name = match[1]
        # A plain word, such as `page`, more often names something else.
        if name.islower() and "_" not in name and "." not in name and "(" not in code:
            return None
        target = self._targets.get(name)
        return None if target == around else target

    def shows(self, text: str) -> bool:
        """Return whether a type consists of types that a reader knows."""
        names = re.findall(r"[A-Za-z_][\w.]*", text)
        return all("." in name or name in _KNOWN_TYPES or name in self._targets for name in names)


def _ops() -> Any:
    return importlib.import_module("heed.ops")


class Names(SphinxDirective):
    """Documents the given names of a part of heed, one a line."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Run autodoc's directive for each name."""
        part = self.arguments[0]
        module = importlib.import_module(part)
        lines: list[str] = []
        for name in filter(None, (line.strip() for line in self.content)):
            value = getattr(module, name)
            if inspect.isclass(value):
                lines += [f".. autoclass:: {part}.{name}"]
                if own := members(value):
                    lines += [f"   :members: {', '.join(own)}"]
            else:
                lines += [f".. autofunction:: {part}.{name}"]
            lines += [""]
        node = nodes.container()
        self.state.nested_parse(StringList(lines, source=part), self.content_offset, node)
        return node.children


def _signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returned: str
) -> tuple[str, None] | None:
    """Give a class the signature of its constructor, not of Keras' `__new__`."""
    if what not in ("class", "exception") or not inspect.isfunction(value.__init__):
        return None
    if getattr(value, "_is_protocol", False):
        return "", None
    own = inspect.signature(value.__init__)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_readable(parameter.default))
        for name, parameter in own.parameters.items()
        if name != "self"
    ]
    return str(own.replace(parameters=parameters, return_annotation=own.empty)), None


class _Name:
    """Shows a function by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _readable(default: Any) -> Any:
    """Return a default, with functions by their names and computed defaults as dots."""
    if default is inspect.Parameter.empty or not repr(default).startswith("<"):
        return default
    return _Name(getattr(default, "__name__", "..."))


def _docstring(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Format a docstring."""
    if not name.startswith("heed"):
        return
    links: Links = app.heed_links  # type: ignore[attr-defined]
    function = value.__init__ if inspect.isclass(value) else value
    types = argument_types(getattr(function, "fget", function) or function)
    types = {name: text for name, text in types.items() if text[0] == "(" or links.shows(text)}
    arguments = set(types) | set(re.findall(r"(?m)^ +(\w+)(?:, \w+)*:", "\n".join(lines)))
    if inspect.isclass(value) and dataclasses.is_dataclass(value):
        arguments |= {field.name for field in dataclasses.fields(value)}
    lines[:] = render(lines, types, lambda code: links.find(code, name, arguments))


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive and the hooks."""
    app.heed_links = Links()  # type: ignore[attr-defined]
    app.add_directive("names", Names)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
