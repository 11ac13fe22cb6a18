"""The fused row-wise ops of the native core, through its C interface, for each instruction set of this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.native import core, fuzz, rows
from tests.native.core import LIBRARY, NO_LABEL, Rows
from tests.native.fuzz import Guards
from tests.native.rows import draw
from tests.slow import slow
from tests.tolerances import to_float64

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")


@pytest.mark.parametrize("seed", [*range(40), *slow(range(40, 200))])
def test_random_calls_equal_the_reference(library: Any, seed: int) -> None:
    fuzz.rows_legal(library, seed)


def assert_one(run: Callable[..., list[np.ndarray]], *places: Any) -> None:
    """Check that results have the same bits in each place and for any number of threads."""
    made = {
        tuple(x.tobytes() for x in run(threads, place))
        for threads in (0, 1, 2, 7)
        for place in places
    }
    assert len(made) == 1


@pytest.mark.parametrize("dtype", core.DTYPES)
def test_cross_entropy_has_the_same_bits_in_place_and_for_any_number_of_threads(
    library: Any, dtype: str
) -> None:
    logits, rng = draw((301, 517), dtype, 0), np.random.default_rng(1)
    given = logits, rng.integers(0, 517, 301), rng.normal(size=301)

    def run(threads: int, in_place: bool) -> list[np.ndarray]:
        return rows.cross_entropy(
            library, *given, smoothing=0.1, threads=threads, in_place=in_place
        )

    assert_one(run, False, True)


@pytest.mark.parametrize("shape", [(301, 517), (5000, 16), (3, 70_000)])
@pytest.mark.parametrize("dtype", core.DTYPES)
def test_normalization_has_the_same_bits_in_place_and_for_any_number_of_threads(
    library: Any, dtype: str, shape: tuple[int, int]
) -> None:
    given = [draw(size, dtype, i) for i, size in enumerate((shape, shape, shape[1:], shape[1:]))]

    def run(threads: int, in_place: bool) -> list[np.ndarray]:
        return rows.normalization(library, *given, threads=threads, in_place=in_place)

    assert_one(run, False, True)


@pytest.mark.parametrize("dtype", core.DTYPES)
def test_dropout_has_the_same_bits_in_place_and_for_any_number_of_threads(
    library: Any, dtype: str
) -> None:
    x, residual = draw((301, 517), dtype, 0), draw((301, 517), dtype, 1)
    x[~rows.keeps(0.4, x.shape)] = np.nan  # what is dropped never counts

    def run(threads: int, over: str | None) -> list[np.ndarray]:
        return [rows.dropout(library, x, residual, threads=threads, over=over)]

    assert_one(run, None, "x", "residual")
    assert np.isfinite(to_float64(*run(1, None))).all()


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


LOGITS, LABELS = np.zeros((3, 5), np.float32), np.array([1, 4, NO_LABEL], np.int32)


def good_call(name: str) -> tuple[Any, list[tuple[int, ...]]]:
    """Return a call that is right, and the shapes of its results."""
    x = LOGITS.ctypes.data
    if name == "cross_entropy":
        return core.CrossEntropy(Rows(0, 2, 5), x, LABELS.ctypes.data, -1, 0.1), [(3,), (2, 3)]
    if name == "normalization":
        return core.Normalization(Rows(0, 2, 5), x, None, None, 1e-5, 0), [(2, 5), (2, 2)]
    if name == "dropout":
        return core.Dropout(Rows(0, 2, 5), x, None, 0.5, (core.c_uint32 * 2)(1, 2)), [(2, 5)]
    return core.Product(Rows(0, 2, 5), 1, 3, 0, x, x, None), [(2, 1, 3)]


@pytest.mark.parametrize(
    ("name", "match", "changes"),
    [
        ("cross_entropy", "dtype must be", {"rows": Rows(4, 2, 5)}),
        ("cross_entropy", "number of rows must be", {"rows": Rows(0, -1, 5)}),
        ("cross_entropy", "width of a row must be", {"rows": Rows(0, 2, 0)}),
        ("cross_entropy", "at most 2", {"rows": Rows(0, 2**31, 2**31)}),
        ("cross_entropy", r"smoothing must be in \[0, 1\)", {"smoothing": 1.0}),
        ("cross_entropy", r"smoothing must be in \[0, 1\)", {"smoothing": float("nan")}),
        ("cross_entropy", "`logits` is missing", {"logits": None}),
        ("cross_entropy", "`labels` is missing", {"labels": None}),
        ("cross_entropy", r"\[0, 4\).* labels with 4", {"rows": Rows(0, 2, 4)}),
        ("cross_entropy", f"labels with {NO_LABEL}", {"ignored": NO_LABEL, "rows": Rows(0, 3, 5)}),
        ("normalization", "dtype must be", {"rows": Rows(-1, 2, 5)}),
        ("normalization", "width of a row must be", {"rows": Rows(0, 2, 0)}),
        ("normalization", "`x` is missing", {"x": None}),
        ("normalization", "epsilon must be a finite number above 0", {"epsilon": 0.0}),
        ("normalization", "epsilon must be a finite number above 0", {"epsilon": float("nan")}),
        ("normalization", r"epsilon must be in \[1e-30, 1e30\]", {"epsilon": 1e-38}),
        ("dropout", "dtype must be", {"rows": Rows(9, 2, 5)}),
        ("dropout", r"width of a row must be in \[0, 2", {"rows": Rows(0, 2, -1)}),
        ("dropout", "`x` is missing", {"x": None}),
        ("dropout", r"rate must be in \[0, 1\)", {"rate": 1.0}),
        ("dropout", r"rate must be in \[0, 1\)", {"rate": float("nan")}),
        ("product", "dtype must be", {"rows": Rows(4, 2, 5)}),
        ("product", "at most 64 rows", {"rows": Rows(0, 65, 5)}),
        ("product", "width of a row must be", {"rows": Rows(0, 2, 0)}),
        ("product", "groups and columns must be", {"groups": 0}),
        ("product", "groups and columns must be", {"columns": 2**31 + 1}),
        ("product", "at most 2", {"groups": 2**31, "columns": 2**31}),
        ("product", "`x` is missing", {"x": None}),
        ("product", "`weights` is missing", {"weights": None}),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(
    guards: Guards, name: str, match: str, changes: dict[str, Any]
) -> None:
    call, shapes = good_call(name)
    for field, value in changes.items():
        setattr(call, field, value)
    results = [guards(shape, np.float32) for shape in shapes]
    with pytest.raises(ValueError, match=match):
        rows.run(getattr(core.load(LIBRARY), f"heed_{name}"), call, *results)
    assert guards.untouched()


def test_results_that_are_missing_are_named() -> None:
    library = core.load(LIBRARY)
    for name, names in (
        ("cross_entropy", "losses softmax"),
        ("cross_entropy_gradient", "softmax losses_gradient logits_gradient"),
        ("normalization", "y moments"),
        ("normalization_gradient", "moments y_gradient x_gradient"),
        ("dropout", "y"),
    ):
        function = getattr(library, f"heed_{name}")
        call, _ = good_call(name.removesuffix("_gradient"))
        given = [np.zeros((2, 5), np.float32) for _ in names.split()]
        optional = [None] * (len(function.argtypes) - 2 - len(given))
        for i, name in enumerate(names.split()):
            with pytest.raises(ValueError, match=f"`{name}` is missing"):
                rows.run(function, call, *given[:i], None, *given[i + 1 :], *optional)


def test_nothing_has_no_rows_to_drop() -> None:
    library = core.load(LIBRARY)
    call = core.Dropout(Rows(0, 2, 0), None, None, 0.5, (core.c_uint32 * 2)(1, 2))
    rows.run(library.heed_dropout, call, None)
