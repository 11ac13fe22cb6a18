"""The backends of Keras that heed runs on, one folder each, and their protocol."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from heed.install import how_to_install
from heed.patching import Patch

# The names of implementations. The portable one runs everywhere.
NATIVE, PORTABLE, EXPORTABLE = "native", "portable", "exportable"
# The framework's own fused attention on a GPU: of PyTorch `scaled_dot_product_attention`, `varlen_attn` and
# `flex_attention`, of JAX the call of cuDNN.
SDPA, VARLEN, FLEX, CUDNN = "sdpa", "varlen_attn", "flex_attention", "cudnn"
FUSED_ON_GPU = (SDPA, VARLEN, FLEX, CUDNN)
# What `Backend.device_of` calls processors; others are "GPU" and "TPU".
CPU = "CPU"
# Stands for "no label is ignored".
NO_LABEL = -(2**31)

# The folders of this package, by Keras' names, with the names of the frameworks for messages.
FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch", "jax": "JAX"}
_F = TypeVar("_F", bound=Callable[..., Any])


class KerasKernel(NamedTuple):
    """A fused kernel that Keras runs."""

    name: str  # for messages
    # whether Keras makes something for it in memory that heed does not: a mask (T, S), repeated keys
    copies: bool


class Backend(Protocol):
    """What heed asks of a backend of Keras: a package of this folder has one, `BACKEND`.

    Attributes:
        IMPLEMENTATIONS: an `Implementation` (`protocol.py`) by name, the preferred one first.
        FUSED_OPS: `FusedOps` (`shared/fused_ops.py`) by the same names; an implementation that is missing here uses the
            portable ones.
        DECODER_OP: the decoder engine as an op of a graph, `decode(decoder, encoder, batch, search)` of tensors; None
            where graphs decode op by op. See `heed.ops.core.decoder` for the engine itself.
        COMPILES_NATIVE: whether Keras can compile a model (`jit_compile=True`) that runs on native kernels.
        MATH: `sin`, `cos`, `tanh`, `floor`, `ceil`, `minimum` and `maximum` of tensors. Some of `keras.ops` compute
            float64 in float32.
        WORD: the dtype in which words of 32 bits are multiplied and shifted.
    """

    IMPLEMENTATIONS: Mapping[str, Any]
    FUSED_OPS: Mapping[str, Any]
    DECODER_OP: Any = None
    COMPILES_NATIVE: bool = False
    MATH: Any
    WORD: str = "uint32"

    def as_written(self, function: _F) -> _F:
        """Return the function, protected from source transformations of the backend."""
        return function

    def constant_while_tracing(self, function: _F) -> _F:
        """Return the function (without arguments), whose result is a constant of code that is traced."""
        return function

    def device_of(self, x: Any = None) -> str:
        """Return where attention of a tensor is computed, without one where Keras is: "CPU", "GPU" or "TPU"."""

    def keras_kernel(self, call: Any) -> KerasKernel | None:
        """Name the fused kernel of `keras.ops.dot_product_attention` on such a device; None if it builds the scores.

        Args:
            call: a `Call` of `heed.ops.device_rule`.
        """
        return None

    def is_tensor(self, x: Any) -> bool:
        """Return whether `x` is a dense tensor of the backend: no variable, sparse tensor or array."""

    def convert_to_tensor(self, x: Any) -> Any:
        """Return an argument as a tensor; integers beyond those of the backend are clamped."""

    def kind_of(self, query: Any, key: Any, value: Any) -> Any:
        """Make a hashable value, equal for tensors of equal shapes and dtypes; None where each call must be checked."""

    def widest_integer(self) -> str:
        """Return the dtype of the widest integers that tensors hold."""
        return "int64"

    def require(self, x: Any, condition: Any, text: str, numbers: dict[str, Any]) -> Any:
        """Return `x`; fails with `text` and the named numbers unless the condition holds, or has no value here."""
        if self.has_values(condition) and not bool(condition):
            raise ValueError(
                text + ", ".join(f"{name}={number}" for name, number in numbers.items())
            )
        return x

    def compile_graph(
        self, function: Callable[..., Any], variables: Callable[[], list[Any]] = list
    ) -> Callable[..., Any]:
        """Return a function of tensors as one graph, compiled on its first call; within a graph, the function itself.

        Args:
            function: the function.
            variables: returns the variables that the function reads, with equal shapes at each call.
        """

    def compile_graph_when_repeated(
        self, function: Callable[[Any], Any], variables: Callable[[], list[Any]] = list
    ) -> Callable[[Any], Any]:
        """Do as `compile_graph`, for a function of a dictionary of tensors; the first call may run without a graph.

        For functions that may run only once and are quick without a graph.
        """
        return self.compile_graph(function, variables)

    def hides_values(self) -> bool:
        """Return whether numbers of tensors cannot be read, as while code is traced, and no error says so."""
        return False

    def has_dynamic_shapes(self) -> bool:
        """Return whether sizes may depend on values: not where a compiler needs fixed ones."""

    def is_unknown_size(self, x: Any) -> bool:
        """Return whether `x` is a symbolic size, not a number or a tensor."""
        return False

    def has_values(self, x: Any) -> bool:
        """Return whether the numbers of a tensor can be read here and now."""

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Return a context in which nothing is recorded for gradients, unless a tape of the caller's records it."""
        return contextlib.nullcontext()

    def steps_with_values(self) -> AbstractContextManager[Any]:
        """Make a context where loops outside of compiled functions run step by step, so that tensors have values."""
        return contextlib.nullcontext()

    def gradients(self, compute: Callable[[Callable[[Any], Any]], Any]) -> list[Any]:
        """Return the gradients of a scalar with respect to tensors on its way; 0 for those that it does not depend on.

        Args:
            compute: computes the scalar. It passes those tensors through the function that it gets and goes on with the
                results. It may run twice, in the same way: then the second time is traced.
        """

    def recomputation_patches(self, start: Callable[..., Any]) -> list[Patch]:
        """Return the patches of functions that keep a forward pass to compute it again.

        Args:
            start: makes a `ForwardPass`.
        """

    def worker(self) -> tuple[int, int]:
        """Return this worker's number among those that compute together, and their count: (0, 1) for a single one."""
        return 0, 1

    def across_workers(self, name: str) -> Any:
        """Return an object with the named implementation's `attend`, for a sequence split across workers."""
        return self.IMPLEMENTATIONS[name]

    def use_threads(self, count: int) -> None:
        """Limit the number of threads, if nothing has run yet."""

    def is_tracing(self) -> bool:
        """Return whether code is traced or transformed here: then tensors may have no numbers."""

    def native_threads(self) -> int:
        """Return the most threads that native code may use; 0 for all that the process may use."""

    def make_reader(self, variables: Sequence[Any]) -> Callable[[], list[Any]]:
        """Return a function that returns the tensors of Keras variables as they are when it is called."""
        return lambda: [x.value for x in variables]

    def to_array(self, x: Any) -> np.ndarray:
        """Return the numbers of a tensor as a contiguous array, in the tensor's own memory where that is possible."""
        return np.ascontiguousarray(x)

    def weights_version(self, tensors: Sequence[Any]) -> Any:
        """Return a value that differs once the variables of held tensors have other numbers."""

    def instruction_set(self) -> str:
        """Return the instruction set of the native kernels here, "none" without kernels."""

    def block_sizes(self) -> dict[str, int]:
        """Return the native kernels' block sizes, named as in `HeedBlockSizes` of `heed.h`; empty without kernels."""


def check() -> None:
    """Check that Keras and its backend are installed, and that heed supports the backend. Runs on import.

    Raises:
        ImportError: if Keras or its backend is missing; the message says how to install it, and which backends are
            there.
        RuntimeError: if heed does not support the backend of Keras.
    """
    wanted = os.environ.get("KERAS_BACKEND", "tensorflow")
    try:
        import keras
    except ImportError as error:
        if wanted not in FRAMEWORKS and error.name != "keras":
            raise _unsupported(wanted) from error
        raise _missing(error, wanted) from error
    name = keras.config.backend()
    if name not in FRAMEWORKS:
        raise _unsupported(name)
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise _missing(error, name) from error


def constant_while_tracing(function: _F) -> _F:
    """Return the function without arguments, whose result is a constant of code that is traced."""
    return current().constant_while_tracing(function)


def require_tensorflow(what: str) -> None:
    """Check that Keras runs on TensorFlow.

    Args:
        what: needs it: the subject of the message, such as "`heed.export`".

    Raises:
        RuntimeError: if Keras has another backend.
    """
    import keras

    if keras.config.backend() != "tensorflow":
        raise RuntimeError(
            f"{what} needs TensorFlow: set KERAS_BACKEND=tensorflow before Keras is imported. "
            f"Received: the backend {keras.config.backend()!r}"
        )


_loaded: Backend | None = None


def current() -> Backend:
    """Return the backend that Keras runs on."""
    # A plain variable: torch.compile reads it, but ignores caches.
    return _loaded or _load()


def _load() -> Backend:
    global _loaded
    import keras

    module: Any = importlib.import_module(f"{__name__}.{keras.config.backend()}")
    _loaded = module.BACKEND
    return module.BACKEND


def as_written(function: _F) -> _F:
    """Return the function, protected from source transformations of the backend."""
    return current().as_written(function)


def _unsupported(name: str) -> RuntimeError:
    choices = " or ".join(f"{key} ({title})" for key, title in FRAMEWORKS.items())
    return RuntimeError(
        f"heed does not support this backend of Keras: set KERAS_BACKEND={choices} before Keras is imported. "
        f"Received: the backend {name!r}"
    )


def _missing(error: ImportError, backend: str) -> ImportError:
    name = (error.name or "a package").partition(".")[0]
    extra = backend if backend in FRAMEWORKS else "tensorflow"
    advice = how_to_install(extra)
    others = [x for x in FRAMEWORKS if x != name and importlib.util.find_spec(x) is not None]
    if name in FRAMEWORKS and others:
        advice += f", or set KERAS_BACKEND={' or '.join(others)} (installed here)"
    return ImportError(f"heed needs {name}: {advice}. Received: {error}", name=error.name)


check()
