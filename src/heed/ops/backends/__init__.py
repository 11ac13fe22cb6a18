"""The backends of Keras that heed computes on, a folder each, and the protocol that they speak.

A backend is a module with

- `IMPLEMENTATIONS`, a dictionary of what can compute an attention, by name, the preferred one first; "portable" runs
  everywhere;
- `ROW_IMPLEMENTATIONS`, by the same names, what can compute that which stands beside attention and works row by row; an
  implementation that is not among them leaves it to "portable";
- `DECODER`, what runs a whole decoding loop (see `DecoderEngine`);
- `as_written(function)`: the function, safe from whatever would rewrite it;
- `is_tensor(x)`: whether it is a tensor of the backend already, and no variable, sparse one or array;
- `required(x, met, text, numbers)`: `x`, with an error when it is computed unless `met`;
- `compiled(function)`: the function of tensors as one graph, compiled on its first call; where a graph is being traced
  already, the function itself;
- `compiled_when_repeated(function)`: the same for a function of a dictionary of tensors, but its first call is no graph
  yet: for what may run once, and is quick without;
- `dynamic_shapes()`: whether what runs or is traced now may have sizes that are known only when it runs;
- `gradient_tape()`: what records an attention for its gradient, for `heed.inspect`;
- `use_threads(count)`: what runs from now on uses so many threads at most, if nothing has run yet;
- `instruction_set()`: of its kernels on this machine, "none" where there are none.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from heed._install import how_to_install
from heed.ops.backends.decoder import DecoderEngine

_BACKENDS = ("tensorflow",)
_F = TypeVar("_F", bound=Callable[..., Any])


class RowImplementation(Protocol):
    """One way to compute what stands beside attention, along the last axis; arguments are checked already.

    The type of computation is float64 for float64, else float32. Everything is differentiable twice.
    """

    def cross_entropy(self, logits: Any, labels: Any, smoothing: float, ignored: int) -> Any:
        """Losses (...) in the type of computation; see `softmax_cross_entropy`.

        Args:
            logits: (..., C).
            labels: (...) int32.
            smoothing: in [0, 1).
            ignored: the label of rows that do not count, or `NO_LABEL`.
        """
        ...

    def normalization(self, x: Any, scale: Any, offset: Any, epsilon: float, rms: bool) -> Any:
        """What `layer_normalization` gives, or with `rms` `rms_normalization`, in the dtype of `x`.

        Args:
            x: (..., D).
            scale, offset: (D,) in the type of computation, or None for 1 and 0.
            epsilon: above 0.
        """
        ...

    def dropout(self, x: Any, residual: Any, rate: float, seed: Any) -> Any:
        """What `dropout` gives, in the dtype of `x`.

        Args:
            x: (..., D).
            residual: like `x`, or None for 0.
            rate: in (0, 1).
            seed: (2,) uint32.
        """
        ...

    def product(self, x: Any, weights: Any, transposed: bool) -> Any | None:
        """The product (R, G, N) of rows with the weights of each group g, or None: leave it to the backend.

        y[r, g, n] = sum over k of x[r, k] * weights[g, k, n]

        Args:
            x: (R, K), of a known shape.
            weights: (G, K, N), or (G, N, K) if `transposed`.
        """
        ...

    def write(self, cache: Any, update: Any, index: Any) -> Any | None:
        """The cache (B, L, ...) with `update` (B, T, ...) from the position `index` on, or None as above.

        Where nobody else holds the cache the update is written into it, and nothing else of it is touched or copied.

        Args:
            index: () int32. The update is moved to where it fits, as by `keras.ops.slice_update`.
        """
        ...

    def argmax(self, x: Any) -> Any:
        """Where the largest number of each row (..., D) is, (...) int32; the first of several."""
        ...


# No label is this, so that none is ignored.
NO_LABEL = -(2**31)


class Backend(Protocol):
    """See above."""

    IMPLEMENTATIONS: Mapping[str, Any]  # of `Implementation`
    ROW_IMPLEMENTATIONS: dict[str, RowImplementation]
    DECODER: DecoderEngine

    def as_written(self, function: _F) -> _F: ...  # noqa: D102
    def is_tensor(self, x: Any) -> bool: ...  # noqa: D102
    def required(self, x: Any, met: Any, text: str, numbers: dict[str, Any]) -> Any: ...  # noqa: D102
    def compiled(self, function: _F) -> _F: ...  # noqa: D102
    def compiled_when_repeated(self, function: _F) -> _F: ...  # noqa: D102
    def dynamic_shapes(self) -> bool: ...  # noqa: D102
    def gradient_tape(self) -> Any: ...  # noqa: D102
    def use_threads(self, count: int) -> None: ...  # noqa: D102
    def instruction_set(self) -> str: ...  # noqa: D102


def check() -> None:
    """Whether what heed computes with is here, now and when this is imported.

    Raises:
        ImportError: if Keras or its backend is missing; says what to install.
        RuntimeError: if Keras runs on a backend that heed does not have.
    """
    wanted = os.environ.get("KERAS_BACKEND", "tensorflow")
    try:
        import keras
    except ImportError as error:
        if wanted != "tensorflow" and error.name != "keras":
            raise _other_backend(wanted) from error
        raise _missing(error) from error
    if keras.config.backend() not in _BACKENDS:
        raise _other_backend(keras.config.backend())
    try:
        importlib.import_module(keras.config.backend())
    except ImportError as error:
        raise _missing(error) from error


@functools.cache
def current() -> Backend:
    """The backend that Keras runs on."""
    import keras

    module: Any = importlib.import_module(f"{__name__}.{keras.config.backend()}")
    return module


def as_written(function: _F) -> _F:
    """The function, safe from whatever the backend would rewrite in it."""
    return current().as_written(function)


def _other_backend(name: str) -> RuntimeError:
    return RuntimeError(
        "heed needs Keras on its TensorFlow backend: set KERAS_BACKEND=tensorflow before Keras is imported. "
        f"Received: the backend {name!r}"
    )


def _missing(error: ImportError) -> ImportError:
    name = (error.name or "a package").partition(".")[0]
    text = f"heed needs {name}: {how_to_install('tensorflow')}. Received: {error}"
    return ImportError(text, name=error.name)


check()
