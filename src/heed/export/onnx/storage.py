"""Where the numbers of a graph are kept: in its file, or in one beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from heed.export.onnx.builder import element_type

# Smaller tensors, as shapes are, stay in the graph's file: checks read them.
_BESIDE = 1024


def stored(
    arrays: Mapping[str, np.ndarray], beside: Path | None, above: int
) -> list[onnx.TensorProto]:
    """The arrays as tensors of a graph.

    Args:
        arrays: by name.
        beside: the file for all that is large, which is written where there is too much for one; or None.
        above: more bytes than that are too much.
    """
    if beside is None or sum(array.nbytes for array in arrays.values()) <= above:
        return [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    found = []
    with beside.open("wb") as file:
        for name, array in arrays.items():
            if array.nbytes < _BESIDE:
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
