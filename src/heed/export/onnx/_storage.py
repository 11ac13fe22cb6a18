"""Stores the numbers of a graph in its file, or in a second file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from heed.export.onnx.builder import element_type

# Smaller tensors, such as shapes, stay in the graph's file, where checks read them.
_LEAST_BESIDE = 1024


def store(
    arrays: Mapping[str, np.ndarray], beside: Path | None, above: int
) -> list[onnx.TensorProto]:
    """Return the arrays as tensors of a graph.

    Args:
        arrays: the arrays by name.
        beside: the file for large arrays, written if all together have more than `above` bytes; or None.
        above: see `beside`.
    """
    if beside is None or sum(array.nbytes for array in arrays.values()) <= above:
        return [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    found = []
    with beside.open("wb") as file:
        for name, array in arrays.items():
            if array.nbytes < _LEAST_BESIDE:
                found.append(onnx.numpy_helper.from_array(array, name))
                continue
            entries = {"location": beside.name, "offset": file.tell(), "length": array.nbytes}
            array.astype(array.dtype.newbyteorder("<"), copy=False).tofile(file)
            found.append(
                onnx.TensorProto(
                    name=name,
                    dims=array.shape,
                    data_type=element_type(array.dtype),
                    data_location=onnx.TensorProto.EXTERNAL,
                    external_data=[
                        onnx.StringStringEntryProto(key=key, value=str(value))
                        for key, value in entries.items()
                    ],
                )
            )
    return found
