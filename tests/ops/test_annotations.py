"""The annotations of public ops name the shapes of their arguments and results."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

import numpy as np
import pytest

from heed import ops

SIZES = {
    "B": 2,
    "T": 3,
    "S": 5,
    "N": 4,
    "K": 2,
    "H": 6,
    "V": 7,
    "U": 8,
    "C": 9,
    "D": 11,
    "1": 1,
    "*": 10,
}
# Sizes of the letters.
NUMBERS = {"query_length": SIZES["T"], "key_length": SIZES["S"], "num_heads": SIZES["N"]}


def shape(annotation: Any) -> str | None:
    """Return the letters of an annotated tensor."""
    return next(iter(getattr(annotation, "__metadata__", ())), None)


def sizes(letters: str, leading: tuple[int, ...] = (2, 3, 4)) -> tuple[int, ...]:
    inner = tuple(SIZES[letter] for letter in letters.replace("...", "").split())
    return (leading if "..." in letters else ()) + inner


ANNOTATED = {
    name: hints
    for name in ops.__all__
    if inspect.isfunction(function := getattr(ops, name))
    and any(map(shape, (hints := typing.get_type_hints(function, include_extras=True)).values()))
}


def test_what_takes_vectors_and_matrices_says_so() -> None:
    assert len(ANNOTATED) >= 8


@pytest.mark.parametrize("name", ANNOTATED)
def test_shapes_are_as_annotated(name: str) -> None:
    function, hints = getattr(ops, name), ANNOTATED[name]
    arguments = {x: n for x, n in NUMBERS.items() if x in inspect.signature(function).parameters}
    for argument, annotation in hints.items():
        if (letters := shape(annotation)) is not None and argument != "return":
            dtype = "int32" if argument == "labels" else "float32"
            arguments[argument] = np.ones(sizes(letters), dtype)
    if name == "attention_statistics":
        arguments["keys"] = [0] * SIZES["*"]
    found = function(**arguments)
    expected = hints["return"]
    if shape(expected) is not None:
        assert tuple(found.shape) == sizes(shape(expected))
        return
    for field, annotation in typing.get_type_hints(expected, include_extras=True).items():
        assert tuple(getattr(found, field).shape) == sizes(shape(annotation)), field


@pytest.mark.parametrize("name", ANNOTATED)
def test_annotations_are_what_the_docstring_says(name: str) -> None:
    text = inspect.getdoc(getattr(ops, name)) or ""
    for argument, annotation in ANNOTATED[name].items():
        letters = shape(annotation)
        if letters is None or argument == "return" or f"{argument}: (" not in text:
            continue
        said = re.search(rf"\b{argument}: \(([^)]*)\)", text)
        words = letters.replace("*", "num_buckets").split()
        assert said, argument
        assert said[1].rstrip(",").split(", ") == words, argument
