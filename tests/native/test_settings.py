"""The numbers that ops take in one tensor have the same names and order in C++ and in Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from heed.ops.backends.tensorflow.native import fused_ops, wire

HEADER = Path(__file__).resolve().parents[2] / "native/adapters/tensorflow/settings.h"


def declared() -> dict[str, tuple[str, ...]]:
    """Each struct of the header that holds numbers, and its fields."""
    structs = re.findall(
        r"struct (\w+) \{\s*(?:double|int64_t) ([^;]+);\s*\};", HEADER.read_text(encoding="utf-8")
    )
    return {name: tuple(re.split(r",\s*", fields)) for name, fields in structs}


def tuples(module: Any) -> dict[str, tuple[str, ...]]:
    """Each tuple of a module with a name of the header, and its fields."""
    return {
        name: kind._fields
        for name, kind in vars(module).items()
        if name.endswith(("Settings", "RuleRow"))
    }


def test_python_and_cpp_declare_the_same_fields() -> None:
    fields = declared()
    assert fields == {**tuples(wire), **tuples(fused_ops)}
    assert {"AttentionSettings", "RuleRow", "ProductSettings"} <= fields.keys()
