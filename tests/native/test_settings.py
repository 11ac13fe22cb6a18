"""The numbers of forms, which are bytes of ops, have the same names and order in C++ and in Python."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from keras import ops

from heed.ops.backends.tensorflow.native import fused_ops
from heed.ops.core import _program, form
from heed.ops.layouts import LAYOUTS
from heed.ops.mask import Mask
from heed.ops.options import SCORING
from heed.ops.scores import AdditiveScore, DotScore
from heed.ops.spec import AttentionSpec, Tensors

ADAPTERS = Path(__file__).resolve().parents[2] / "native/adapters"


def declared(file: str) -> dict[str, tuple[str, ...]]:
    """Return each struct of a file that holds numbers of 8 bytes alone, and its fields."""
    text = (ADAPTERS / file).read_text(encoding="utf-8")
    kinds = "double|int64_t|HeedScoring"
    structs = re.findall(rf"struct (\w+) \{{\n((?:  (?:{kinds}) [^;]+;\n)+)\}};", text)
    return {
        name: tuple(re.findall(r"(\w+)[,;]", re.sub(rf"\b({kinds}) ", "", fields)))
        for name, fields in structs
    }


def test_python_and_cpp_declare_the_same_fields() -> None:
    header = "dropout", "scoring", *form.Header._fields
    others = form.Rule, _program.ProgramHeader, _program.CapturedOperand, _program.ScatterWords
    structs = {x.__name__: x._fields for x in others}
    assert declared("shared/call.h") == {"Header": header, **structs}
    text = (ADAPTERS.parent / "include/heed.h").read_text(encoding="utf-8")
    (scoring,) = re.findall(
        r"^typedef struct HeedScoring \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL
    )
    assert tuple(re.findall(r"^  double (\w+);", scoring, re.MULTILINE)) == SCORING
    rows = declared("tensorflow/row_ops.cc") | declared("tensorflow/decode_ops.cc")
    assert len(rows) == 4
    assert rows == {name: getattr(fused_ops, name)._fields for name in rows}


def test_layouts_are_numbered_as_in_cpp() -> None:
    assert list(LAYOUTS) == ["BTNH", "BNTH", "BTU"]
    assert "enum Layout : int64_t { kLengthFirst, kHeadsFirst, kNoHeads };" in (
        ADAPTERS / "shared/call.h"
    ).read_text(encoding="utf-8")


def array(*shape: int, dtype: str = "float32") -> object:
    return ops.convert_to_tensor(np.ones(shape, dtype))


MASKS = {
    "none": None,
    "plain": Mask.window(2, None, 3) & Mask.prefix(4, 1) & Mask.dilated(2, -1),
    "aligned": Mask.causal("bottom_right"),
    "tensors": Mask.lengths([1, 2], [2, 3])
    & Mask.segments(np.zeros((2, 5), int), np.zeros((2, 7), int))
    & Mask.prefix(np.array([1, 2]), np.array([3, 4]))
    & Mask.dense(np.ones((5, 7), bool)),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_form_is_read_as_what_was_written(layout: str, name: str) -> None:
    additive = layout == "BTU"
    shapes = {"BTNH": (2, 5, 4, 8), "BNTH": (2, 4, 5, 8), "BTU": (2, 5, 8)}
    query, key = array(*shapes[layout]), array(*(7 if n == 5 else n for n in shapes[layout]))
    bias, slopes = array(8) if additive else array(1, 4, 5, 7), None if additive else array(4)
    vector = array(8) if additive else None
    tensors = Tensors(query, key, key, bias, slopes, array(2, dtype="uint32"), vector)
    spec = AttentionSpec.of(
        *tensors[:3],
        layout,
        score=AdditiveScore() if additive else DotScore(0.3, 2.0),
        mask=MASKS[name],
        dtype="float32",
        has_bias=True,
        has_slopes=not additive,
        dropout=0.25,
    )
    written, of_mask = form.write(spec, tensors)
    packed = written.pack()
    assert form.Form.unpack(packed) == written == form.Form.of(written.reals, written.integers)
    found, operands = form.read(written, *tensors[:3], form.operands(tensors, of_mask))
    assert all(x is y for x, y in zip(operands, tensors, strict=True))
    again, of_mask_again = form.write(found, operands)
    assert again == written
    aligned = 0 if additive else 1  # that of ALiBi
    assert len(of_mask) == (7 + aligned if name == "tensors" else 0)
    for x, y in zip(of_mask, of_mask_again, strict=True):
        np.testing.assert_array_equal(x, y)
    if spec.is_plain and name != "aligned":  # which is read as a number
        assert found == spec


def test_operands_that_are_one_tensor_have_places_of_their_own() -> None:
    units = array(2, 5, 8)
    vector = array(8)
    tensors = Tensors(units, units, units, bias=vector, score_vector=vector)
    others = {"mask": None, "dtype": "float32", "has_bias": True, "has_slopes": False}
    spec = AttentionSpec.of(*tensors[:3], "BTU", score=AdditiveScore(), dropout=0.0, **others)
    header = form.write(spec, tensors)[0].header
    assert {header.bias, header.score_vector} == {0, 1}
