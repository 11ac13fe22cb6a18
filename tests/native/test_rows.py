"""The fused row-wise ops of the native core, through its C interface, for each instruction set of this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import reference
from tests.native import core, rows
from tests.native.core import LIBRARY, NO_LABEL, Rows
from tests.native.fuzz import GUARD, Guards
from tests.native.rows import draw, exact
from tests.tolerances import assert_gradients, assert_statistics, assert_values

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")
SHAPES = ((0, 5), (1, 1), (3, 7), (2, 16), (5, 33), (3, 129), (40, 1000), (2, 9001))


def refused(function: Any, call: Any, results: list[Any], match: str, **changes: Any) -> None:
    """Check that a call with some fields changed is refused with those words, and writes nothing."""
    for name, value in changes.items():
        setattr(call, name, value)
    with pytest.raises(ValueError, match=match):
        rows.run(function, call, *results)
    assert all((x.view(np.uint8) == GUARD).all() for x in results if x is not None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", core.DTYPES)
def test_cross_entropy_is_that_of_the_reference(
    library: Any, guards: Guards, dtype: str, shape: tuple[int, int]
) -> None:
    for seed, (smoothing, ignored, shift) in enumerate(
        ((0.0, NO_LABEL, 0.0), (0.1, NO_LABEL, -300.0), (0.5, 0, 100.0))
    ):
        logits = draw(shape, dtype, seed, 3.0)
        logits = (logits + np.asarray(shift, logits.dtype)).astype(logits.dtype)
        rng = np.random.default_rng(seed)
        labels, d_losses = rng.integers(0, shape[1], shape[0]), rng.normal(size=shape[0])
        options = {"smoothing": smoothing, "ignored": ignored}
        losses, gradient = rows.cross_entropy(
            library, logits, labels, d_losses, make=guards, **options
        )
        arguments = (exact(logits), labels)
        assert_statistics(losses, reference.cross_entropy(*arguments, **options), dtype)
        expected = reference.cross_entropy_backward(*arguments, d_losses, **options)
        assert_gradients(gradient, expected, dtype)


@pytest.mark.parametrize("dtype", core.DTYPES)
def test_cross_entropy_has_the_same_bits_in_place_and_for_any_number_of_threads(
    library: Any, dtype: str
) -> None:
    logits, rng = draw((301, 517), dtype, 0), np.random.default_rng(1)
    labels, d_losses = rng.integers(0, 517, 301), rng.normal(size=301)
    options = {"smoothing": 0.1}
    found = {
        tuple(
            result.tobytes()
            for result in rows.cross_entropy(
                library, logits, labels, d_losses, threads=n, in_place=in_place, **options
            )
        )
        for n in (0, 1, 2, 7)
        for in_place in (False, True)
    }
    assert len(found) == 1


def test_exponentials_over_their_whole_range(library: Any) -> None:
    """The gradient of a logit x other than the label's is exp(x), if the row has maximum 0 and sum 1."""
    steps = np.random.default_rng(0).uniform(-0.5, 0.5, 20000)
    logits = np.concatenate([[0.0], np.linspace(-95, 88, 20000), steps, [-1e30, -np.inf, np.nan]])
    logits = logits.astype(np.float32)[None]
    labels, gradient = np.zeros(1, np.int32), np.empty_like(logits)
    call = core.CrossEntropy(Rows.of(logits), logits.ctypes.data, labels.ctypes.data, NO_LABEL, 0.0)
    softmax, d_losses = np.array([[0], [1]], np.float32), np.ones(1, np.float32)
    rows.run(library.heed_cross_entropy_gradient, call, softmax, d_losses, gradient)
    expected = np.exp2((logits * np.float32(np.log2(np.e))).astype(np.float64))[0, 1:-1]
    expected[expected < 2.0**-126] = 0  # no denormal numbers
    np.testing.assert_allclose(gradient[0, 1:-1], expected, rtol=2e-7, atol=0)
    assert gradient[0, 0] == 0
    assert np.isnan(gradient[0, -1])


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("dtype must be", {"rows": Rows(4, 2, 5)}),
        ("number of rows must be", {"rows": Rows(0, -1, 5)}),
        ("width of a row must be", {"rows": Rows(0, 2, 0)}),
        ("at most 2", {"rows": Rows(0, 2**31, 2**31)}),
        (r"smoothing must be in \[0, 1\)", {"smoothing": 1.0}),
        (r"smoothing must be in \[0, 1\)", {"smoothing": float("nan")}),
        ("`logits` is missing", {"logits": None}),
        ("`labels` is missing", {"labels": None}),
        (r"\[0, 4\), or `ignore_class`. Received: labels with 4", {"rows": Rows(0, 2, 4)}),
        ("labels with -2147483648", {"ignored": NO_LABEL, "rows": Rows(0, 3, 5)}),
    ],
)
def test_cross_entropy_refuses_what_it_cannot_do(
    guards: Guards, match: str, changes: dict[str, Any]
) -> None:
    library = core.load(LIBRARY)
    logits, labels = np.zeros((3, 5), np.float32), np.array([1, 4, NO_LABEL], np.int32)
    results = [guards((3,), np.float32), guards((2, 3), np.float32)]
    call = core.CrossEntropy(Rows(0, 2, 5), logits.ctypes.data, labels.ctypes.data, -1, 0.1)
    refused(library.heed_cross_entropy, call, results, match, **changes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", core.DTYPES)
def test_normalization_is_that_of_the_reference(
    library: Any, guards: Guards, dtype: str, shape: tuple[int, int]
) -> None:
    for seed, (rms, count, shift) in enumerate(((False, 2, 3.0), (True, 1, 0.0), (False, 0, -2.0))):
        x = draw(shape, dtype, seed)
        x = (x + np.asarray(shift, x.dtype)).astype(x.dtype)
        d_y, vectors = draw(shape, dtype, 9), [draw(shape[1:], dtype, i) for i in range(count)]
        y, *gradients = rows.normalization(
            library, x, d_y, *vectors, epsilon=0.1, rms=rms, make=guards
        )
        rows.check_normalization(x, d_y, vectors, rms, y, gradients, dtype)


@pytest.mark.parametrize("shape", [(301, 517), (5000, 16), (3, 70_000)])
@pytest.mark.parametrize("dtype", core.DTYPES)
def test_normalization_has_the_same_bits_in_place_and_for_any_number_of_threads(
    library: Any, dtype: str, shape: tuple[int, int]
) -> None:
    x, d_y = draw(shape, dtype, 0), draw(shape, dtype, 1)
    vectors = draw(shape[1:], dtype, 2), draw(shape[1:], dtype, 3)
    found = {
        tuple(
            result.tobytes()
            for result in rows.normalization(
                library, x, d_y, *vectors, threads=n, in_place=in_place
            )
        )
        for n in (0, 1, 2, 7)
        for in_place in (False, True)
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("dtype must be", {"rows": Rows(-1, 2, 5)}),
        ("width of a row must be", {"rows": Rows(0, 2, 0)}),
        ("`x` is missing", {"x": None}),
        ("epsilon must be a finite number above 0", {"epsilon": 0.0}),
        ("epsilon must be a finite number above 0", {"epsilon": float("nan")}),
        (r"epsilon must be in \[1e-30, 1e30\]", {"epsilon": 1e-38}),
    ],
)
def test_normalization_refuses_what_it_cannot_do(
    guards: Guards, match: str, changes: dict[str, Any]
) -> None:
    library, x = core.load(LIBRARY), np.zeros((2, 5), np.float32)
    call = core.Normalization(Rows(0, 2, 5), x.ctypes.data, None, None, 1e-5, 0)
    results = [guards((2, 5), np.float32), guards((2, 2), np.float32)]
    refused(library.heed_normalization, call, results, match, **changes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", core.DTYPES)
def test_dropout_follows_its_definition(
    library: Any, guards: Guards, dtype: str, shape: tuple[int, int]
) -> None:
    x, residual = draw(shape, dtype, 0), draw(shape, dtype, 1)
    keep = rows.keeps(0.4, shape)
    x[~keep] = np.nan
    alone = np.where(keep, exact(x) / 0.6, 0.0)
    assert_values(rows.dropout(library, x, make=guards), alone, dtype)
    found = rows.dropout(library, x, residual, make=guards)
    assert_values(found, exact(residual) + alone, dtype)


@pytest.mark.parametrize("dtype", core.DTYPES)
def test_dropout_has_the_same_bits_in_place_and_for_any_number_of_threads(
    library: Any, dtype: str
) -> None:
    x, residual = draw((301, 517), dtype, 0), draw((301, 517), dtype, 1)
    found = {
        rows.dropout(library, x, residual, threads=n, over=over).tobytes()
        for n in (0, 1, 2, 7)
        for over in (None, "x", "residual")
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("dtype must be", {"rows": Rows(9, 2, 5)}),
        (r"width of a row must be in \[0, 2", {"rows": Rows(0, 2, -1)}),
        ("`x` is missing", {"x": None}),
        (r"rate must be in \[0, 1\)", {"rate": 1.0}),
        (r"rate must be in \[0, 1\)", {"rate": float("nan")}),
    ],
)
def test_dropout_refuses_what_it_cannot_do(
    guards: Guards, match: str, changes: dict[str, Any]
) -> None:
    library, x = core.load(LIBRARY), np.zeros((2, 5), np.float32)
    call = core.Dropout(Rows(0, 2, 5), x.ctypes.data, None, 0.5, (core.c_uint32 * 2)(1, 2))
    refused(library.heed_dropout, call, [guards((2, 5), np.float32)], match, **changes)


def test_results_that_are_missing_are_named() -> None:
    library, x = core.load(LIBRARY), np.zeros((2, 5), np.float32)
    labels = np.zeros(2, np.int32)
    loss = core.CrossEntropy(Rows(0, 2, 5), x.ctypes.data, labels.ctypes.data, NO_LABEL, 0.0)
    norm = core.Normalization(Rows(0, 2, 5), x.ctypes.data, None, None, 1e-5, 0)
    drop = core.Dropout(Rows(0, 2, 5), x.ctypes.data, None, 0.5, (core.c_uint32 * 2)(1, 2))
    for function, call, names in (
        (library.heed_cross_entropy, loss, "losses softmax"),
        (library.heed_cross_entropy_gradient, loss, "softmax losses_gradient logits_gradient"),
        (library.heed_normalization, norm, "y moments"),
        (library.heed_normalization_gradient, norm, "moments y_gradient x_gradient"),
        (library.heed_dropout, drop, "y"),
    ):
        given = [np.zeros((2, 5), np.float32) for _ in names.split()]
        optional = [None] * (len(function.argtypes) - 2 - len(given))
        for i, name in enumerate(names.split()):
            with pytest.raises(ValueError, match=f"`{name}` is missing"):
                rows.run(function, call, *given[:i], None, *given[i + 1 :], *optional)


def test_nothing_has_no_rows_to_drop() -> None:
    library = core.load(LIBRARY)
    call = core.Dropout(Rows(0, 2, 0), None, None, 0.5, (core.c_uint32 * 2)(1, 2))
    rows.run(library.heed_dropout, call, None)
