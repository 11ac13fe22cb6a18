"""`Mask.plot`: the contents of the figure."""

from __future__ import annotations

import io

import numpy as np
import pytest
from keras import ops

from heed import Mask


@pytest.mark.parametrize(("T", "S"), [(5, 5), (1, 7), (300, 4), (0, 3)])
def test_the_picture_is_the_mask(T, S):
    mask = Mask.window(2, 1, "bottom_right") & Mask.lengths([S - 1])
    figure = mask.plot(T, S)
    (image,) = figure.axes[0].get_images()
    allowed = ops.convert_to_numpy(mask.to_dense(T, S))[0, 0]
    np.testing.assert_array_equal(np.asarray(image.get_array()), allowed)
    hidden, seen = image.to_rgba(np.array([[False, True]]))[0, :, :3] @ [0.2126, 0.7152, 0.0722]
    assert hidden - seen > 0.5
    share = 100 * allowed.mean() if allowed.size else 0
    assert figure.axes[0].get_title(loc="left") == f"keeps {share:.3g} % of {T} x {S}"
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        file = io.BytesIO()
        figure.savefig(file, format=kind)
        assert file.getvalue().startswith(start)


def test_one_entry_and_head_of_many():
    array = np.random.default_rng(0).random((2, 3, 4, 5)) < 0.5
    (image,) = Mask.dense(array).plot(4, 5, batch=1, head=2).axes[0].get_images()
    np.testing.assert_array_equal(np.asarray(image.get_array()), array[1, 2])
