"""What stands beside attention in the native core, through its C interface, for each instruction set here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests import reference
from tests.native import core
from tests.native.core import LIBRARY, NO_LABEL, Rows
from tests.strategies import cast
from tests.tolerances import assert_gradients, assert_statistics, assert_values, to_numpy

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")
SHAPES = ((0, 5), (1, 1), (3, 7), (2, 16), (5, 33), (3, 129), (40, 1000), (2, 9001))
CANARY = 0x5A


@pytest.fixture(params=core.INSTRUCTION_SETS)
def library(request: pytest.FixtureRequest) -> Iterator[Any]:
    library = core.load(LIBRARY)
    if not library.heed_use_instruction_set(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield library
    library.heed_use_instruction_set(None)


class Guarded:
    """An array between two stretches of canaries, which must be there in the end."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._bytes = np.full(count + 512, CANARY, np.uint8)
        self.array = self._bytes[256 : 256 + count].view(dtype).reshape(shape)

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    def checked(self) -> np.ndarray:
        """The array, none of whose neighbours was written to."""
        ends = np.concatenate([self._bytes[:256], self._bytes[-256:]])
        assert (ends == CANARY).all()
        return self.array


def guarded(x: np.ndarray) -> Guarded:
    made = Guarded(x.shape, x.dtype)
    made.array[...] = x
    return made


def compute(x: np.ndarray) -> Any:
    return np.float64 if x.dtype == np.float64 else np.float32


def run(function: Any, call: Any, *arrays: Guarded | None, threads: int = 2) -> None:
    addresses = (None if x is None else x.address for x in arrays)
    problem = function(call, *addresses, threads)
    if problem is not None:
        raise ValueError(problem.decode())


def exact(x: np.ndarray) -> np.ndarray:
    return to_numpy(x).astype(np.float64)


def draw(shape: tuple[int, ...], dtype: str, seed: int, scale: float = 1.0) -> np.ndarray:
    return np.asarray(cast(scale * np.random.default_rng(seed).normal(size=shape), dtype))


# Cross-entropy


def cross_entropy(
    library: Any, logits: np.ndarray, labels: np.ndarray, d_losses: np.ndarray, **options: Any
) -> list[np.ndarray]:
    """Losses and the gradient of the logits, which takes their place if `in_place`."""
    x, y = guarded(logits), guarded(labels.astype(np.int32))
    smoothing, ignored = options.get("smoothing", 0.0), options.get("ignored", NO_LABEL)
    call = core.CrossEntropy(Rows.of(logits), x.address, y.address, ignored, smoothing)
    kind, threads = compute(logits), options.get("threads", 2)
    losses, softmax = Guarded(labels.shape, kind), Guarded((2, *labels.shape), kind)
    run(library.heed_cross_entropy, call, losses, softmax, threads=threads)
    incoming = guarded(d_losses.astype(kind))
    gradient = x if options.get("in_place") else Guarded(logits.shape, logits.dtype)
    run(library.heed_cross_entropy_gradient, call, softmax, incoming, gradient, threads=threads)
    return [losses.checked(), gradient.checked()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", core.DTYPES)
def test_cross_entropy_is_that_of_the_reference(
    library: Any, dtype: str, shape: tuple[int, int]
) -> None:
    for seed, (smoothing, ignored, shift) in enumerate(
        ((0.0, NO_LABEL, 0.0), (0.1, NO_LABEL, -300.0), (0.5, 0, 100.0))
    ):
        logits = draw(shape, dtype, seed, 3.0)
        logits = (logits + np.asarray(shift, logits.dtype)).astype(logits.dtype)
        rng = np.random.default_rng(seed)
        labels, d_losses = rng.integers(0, shape[1], shape[0]), rng.normal(size=shape[0])
        options = {"smoothing": smoothing, "ignored": ignored}
        losses, gradient = cross_entropy(library, logits, labels, d_losses, **options)
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
    found = {
        tuple(
            x.tobytes()
            for x in cross_entropy(
                library, logits, labels, d_losses, smoothing=0.1, threads=n, in_place=in_place
            )
        )
        for n in (0, 1, 2, 7)
        for in_place in (False, True)
    }
    assert len(found) == 1


def test_cross_entropy_refuses_what_it_cannot_do() -> None:
    library = core.load(LIBRARY)
    logits, labels = Guarded((2, 5), np.float32), guarded(np.array([1, 4], np.int32))
    losses, softmax = Guarded((2,), np.float32), Guarded((2, 2), np.float32)

    def refused(match: str, **changes: Any) -> None:
        rows = Rows(0, 2, 5)
        for name in ("dtype", "count", "width"):
            setattr(rows, name, changes.pop(name, getattr(rows, name)))
        results = [changes.pop("losses", losses), changes.pop("softmax", softmax)]
        call = core.CrossEntropy(rows, logits.address, labels.address, NO_LABEL, 0.1)
        for name, value in changes.items():
            setattr(call, name, value)
        with pytest.raises(ValueError, match=match):
            run(library.heed_cross_entropy, call, *results)
        assert (
            losses.checked() == np.full(2, CANARY * 0x01010101, np.int32).view(np.float32)
        ).all()

    refused("dtype must be", dtype=4)
    refused("number of rows must be", count=-1)
    refused("width of a row must be", width=0)
    refused("at most", count=2**31, width=2**31)
    refused(r"smoothing must be in \[0, 1\)", smoothing=1.0)
    refused(r"smoothing must be in \[0, 1\)", smoothing=float("nan"))
    refused("`logits` is missing", logits=None)
    refused("`labels` is missing", labels=None)
    refused("`losses` is missing", losses=None)
    refused("`softmax` is missing", softmax=None)
    labels.array[0] = NO_LABEL
    refused("Received: labels with -2147483648")
    labels.array[0] = 1
    refused(r"`labels` must be in \[0, 4\), or `ignore_class`. Received: labels with 4", width=4)


# Normalisation


def normalization(
    library: Any, x: np.ndarray, d_y: np.ndarray, *vectors: np.ndarray | None, **options: Any
) -> list[np.ndarray]:
    """The result, and the gradients of x, which takes the place of that of y if `in_place`, and of what is given."""
    kind, threads = compute(x), options.get("threads", 2)
    held = guarded(x)
    given = [None if v is None else guarded(v.astype(kind)) for v in (*vectors, None, None)[:2]]
    addresses = (None if v is None else v.address for v in given)
    settings = (options.get("epsilon", 1e-5), options.get("rms", False))
    call = core.Normalization(Rows.of(x), held.address, *addresses, *settings)
    y, moments = Guarded(x.shape, x.dtype), Guarded((2, x.shape[0]), kind)
    run(library.heed_normalization, call, y, moments, threads=threads)
    incoming = guarded(d_y)
    results = [incoming if options.get("in_place") else Guarded(x.shape, x.dtype)]
    results += [None if v is None else Guarded(v.array.shape, kind) for v in given]
    function = library.heed_normalization_gradient
    run(function, call, moments, incoming, *results, threads=threads)
    return [made.checked() for made in (y, *results) if made is not None]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", core.DTYPES)
def test_normalization_is_that_of_the_reference(
    library: Any, dtype: str, shape: tuple[int, int]
) -> None:
    for seed, (rms, count, shift) in enumerate(((False, 2, 3.0), (True, 1, 0.0), (False, 0, -2.0))):
        x = (exact(draw(shape, dtype, seed)) + shift).astype(draw((1,), dtype, 0).dtype)
        d_y, vectors = (
            draw(shape, dtype, 9),
            [draw(shape[1:], dtype, seed + i) for i in range(count)],
        )
        y, *gradients = normalization(library, x, d_y, *vectors, epsilon=0.1, rms=rms)
        given = [exact(v) for v in vectors]
        expected = reference.normalization(exact(x), *given, epsilon=0.1, rms=rms)
        assert_values(y, expected, dtype)
        scale = given[0] if given else None
        wanted = reference.normalization_backward(exact(x), exact(d_y), scale, 0.1, rms)
        assert len(gradients) == 1 + count
        for gradient, of_reference in zip(gradients, wanted, strict=False):
            unit = max(1.0, np.abs(of_reference).max(initial=0.0))
            assert_gradients(exact(gradient) / unit, of_reference / unit, dtype)


@pytest.mark.parametrize("shape", [(301, 517), (5000, 16), (3, 70_000)])
@pytest.mark.parametrize("dtype", core.DTYPES)
def test_normalization_has_the_same_bits_in_place_and_for_any_number_of_threads(
    library: Any, dtype: str, shape: tuple[int, int]
) -> None:
    x, d_y, scale, offset = (
        draw(n, dtype, i) for i, n in enumerate((shape,) * 2 + (shape[1:],) * 2)
    )
    found = {
        tuple(
            result.tobytes()
            for result in normalization(
                library, x, d_y, scale, offset, threads=n, in_place=in_place
            )
        )
        for n in (0, 1, 2, 7)
        for in_place in (False, True)
    }
    assert len(found) == 1


def test_normalization_refuses_what_it_cannot_do() -> None:
    library = core.load(LIBRARY)
    x, y, moments = (Guarded(shape, np.float32) for shape in ((2, 5), (2, 5), (2, 2)))

    def refused(match: str, results: Any = (y, moments), **changes: Any) -> None:
        call = core.Normalization(Rows(0, 2, 5), x.address, None, None, 1e-5, 0)
        for name, value in changes.items():
            setattr(call, name, value)
        with pytest.raises(ValueError, match=match):
            run(library.heed_normalization, call, *results)

    refused("dtype must be", rows=Rows(-1, 2, 5))
    refused("width of a row must be", rows=Rows(0, 2, 0))
    refused("`x` is missing", x=None)
    refused("epsilon must be a finite number above 0", epsilon=0.0)
    refused("epsilon must be a finite number above 0", epsilon=float("nan"))
    refused(r"epsilon must be in \[1e-30, 1e30\]", epsilon=1e-38)
    refused("`y` is missing", results=(None, moments))
    refused("`moments` is missing", results=(y, None))
