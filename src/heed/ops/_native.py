"""The native kernels: finding them, saying what they cannot run, and calling their ops."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from heed.ops._mask_terms import FAR, Dense, Lengths, Prefix, Segments, Window, offset
from heed.ops._tile import Attention

_MOST_RULES = 8


def library_path(name: str) -> Path | None:
    """Where the library "core" or "tf" is, or None. An editable install has it apart from the sources."""
    package = sys.modules[__name__.partition(".")[0]]
    files = (Path(folder) / "_lib" / f"libheed_{name}.so" for folder in package.__path__)
    return next((file for file in files if file.exists()), None)


@functools.cache
def _load() -> tuple[Any, Any, str]:
    """The core library, the module of its TensorFlow ops, and why there is none if so."""
    core, ops = library_path("core"), library_path("tf")
    if core is None or ops is None:
        return (
            None,
            None,
            "heed was installed without its native library (no C++ compiler was at hand)",
        )
    try:
        # TensorFlow's ops first: they bring the core with them.
        module = tf.load_op_library(str(ops))
        library = ctypes.CDLL(str(core))
        library.heed_instruction_set.restype = ctypes.c_char_p
        if not hasattr(module, "heed_attention"):
            return (
                None,
                None,
                "this TensorFlow does not offer the C interface that the native library needs",
            )
    except (OSError, tf.errors.OpError) as error:
        return None, None, f"the native library could not be loaded: {error}"
    return library, module, ""


def register_ops() -> None:
    """Makes TensorFlow know the native ops, where there are any."""
    _load()


def instruction_set() -> str:
    """The instruction set that the kernels use here, or "none"."""
    library = _load()[0]
    return "none" if library is None else library.heed_instruction_set().decode()


@functools.cache
def _machine_reasons() -> tuple[str, ...]:
    if reason := _load()[2]:
        return (reason,)
    for kind in ("GPU", "TPU"):
        if tf.config.list_logical_devices(kind):
            return (f"there is a {kind}, and the native kernels are for CPUs",)
    return ()


def _compiled_by_xla() -> bool:
    """Whether a `tf.function(jit_compile=True)` is being traced: XLA cannot compile the native ops.

    TensorFlow does not tell, so this looks for such a function among the callers.
    """
    if tf.executing_eagerly():
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        # Only there: reading the locals of a frame keeps them alive as long as the frame.
        if frame.f_code.co_filename.endswith("polymorphic_function.py"):
            function = frame.f_locals.get("self")
            if getattr(function, "_jit_compile", None):
                return True
        frame = frame.f_back
    return False


def unsupported_reasons(
    attention: Attention | None = None, widths: tuple[int, ...] = ()
) -> list[str]:
    """Why the native implementation cannot run, as sentences for a person; empty if it can.

    Args:
        attention: the call in question; None asks about this machine alone.
        widths: H (or U) and V of the call.
    """
    reasons = list(_machine_reasons())
    if reasons:
        return reasons
    if _compiled_by_xla():
        reasons.append("XLA compiles this function, and it cannot compile the native ops")
    if (
        attention is not None
        and attention.mask is not None
        and len(attention.mask.terms) > _MOST_RULES
    ):
        reasons.append(
            f"the mask has {len(attention.mask.terms)} rules, the native kernels take {_MOST_RULES}"
        )
    if 0 in widths:
        reasons.append("vectors of width 0 have nothing to compute")
    return reasons


def _threads() -> int:
    """TensorFlow's own setting, 0 for "as many as this process may use"."""
    return tf.config.threading.get_intra_op_parallelism_threads()


class NativeCall:
    """The arguments that all native ops share, for one call.

    Args:
        op: name of the op; that of its gradient has "_gradient" at the end.
        attention: what to compute.
        bias: of the scores, (B or 1, N or 1, T or 1, S or 1), for additive attention (U,); or None.
        scale, soft_cap: of dot-product attention.
        score_vector: (U,), of additive attention.
    """

    def __init__(
        self,
        op: str,
        attention: Attention,
        bias: tf.Tensor | None,
        *,
        scale: float = 1.0,
        soft_cap: float | None = None,
        score_vector: tf.Tensor | None = None,
    ):
        self._op = op
        self._numbers: list[tf.Tensor] = []
        self._arrays: list[tf.Tensor] = []
        self._attention = attention
        rules = (
            [] if attention.mask is None else [self._rule(term) for term in attention.mask.terms]
        )
        self._score_vector = score_vector
        self._reals = [x for x in (bias, attention.slopes) if x is not None]
        if attention.slopes is not None:
            align = 0 if attention.mask is None else attention.mask.alignment
            rules.append([-1, 0, 0, self._align(align), -1, -1, -1])
        settings = [
            scale,
            soft_cap or 0.0,
            attention.rate,
            float(bias is not None),
            float(attention.slopes is not None),
            float(_threads()),
        ]
        self._shared = {
            "settings": np.array(settings, np.float64),
            "seed": np.zeros(2, np.uint32) if attention.words is None else attention.words,
            "rules": np.array(rules, np.int64).reshape(-1, 7),
        }

    def forward(self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> list[tf.Tensor]:
        """Output, log-sum-exp, and the highest score and sum of each row, which its gradient needs."""
        return self._run(self._op, (query, key, value))

    def backward(
        self,
        operands: Sequence[tf.Tensor],
        incoming: Sequence[tf.Tensor],
        **results: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Gradients of query, key and value; for additive attention also of score vector and bias.

        Args:
            operands: query, key, value.
            incoming: gradients of output and log-sum-exp.
            results: what the forward pass gave: `output` and `softmax`.
        """
        gradients = dict(zip(("output_gradient", "lse_gradient"), incoming, strict=True))
        return self._run(f"{self._op}_gradient", operands, **results, **gradients)

    def bias_gradient(
        self,
        operands: Sequence[tf.Tensor],
        incoming: Sequence[tf.Tensor],
        **results: tf.Tensor,
    ) -> tf.Tensor:
        """Gradient of the bias of dot-product attention, from what `backward` takes.

        An op of its own: a graph leaves it out where nobody asks for it.
        """
        gradients = dict(zip(("output_gradient", "lse_gradient"), incoming, strict=True))
        (gradient,) = self._run(f"{self._op}_bias_gradient", operands, **results, **gradients)
        gradient.set_shape(self._reals[0].shape)
        return gradient

    def _run(
        self, name: str, operands: Sequence[tf.Tensor], **others: tf.Tensor
    ) -> list[tf.Tensor]:
        query, key, value = operands
        compute = tf.float64 if query.dtype == tf.float64 else tf.float32
        # The first of them only says which the compute type is, if nothing else does.
        first = tf.zeros((), compute) if self._score_vector is None else self._score_vector
        results = getattr(_load()[1], name)(
            query=query,
            key=key,
            value=value,
            **others,
            **self._shared,
            reals=[first, *self._reals],
            numbers=self._numbers,
            arrays=self._arrays,
        )
        return [results] if isinstance(results, tf.Tensor) else list(results)

    def _rule(self, term: Any) -> list[int]:
        if isinstance(term, Window):
            left, right = (
                FAR if reach is None else min(reach, FAR) for reach in (term.left, term.right)
            )
            return [0, left, right, self._align(term.align), -1, -1, -1]
        if isinstance(term, Prefix):
            return [1, 0, 0, self._align(term.align), self._number(term.n), -1, -1]
        if isinstance(term, Lengths):
            second = -1 if term.query_lengths is None else self._number(term.query_lengths)
            return [2, 0, 0, -1, self._number(term.key_lengths), second, -1]
        if isinstance(term, Segments):
            return [3, 0, 0, -1, self._number(term.query_ids), self._number(term.key_ids), -1]
        if isinstance(term, Dense):
            array = term.array
            missing = 4 - array.shape.rank
            self._arrays.append(array[(None,) * missing + (...,)] if missing else array)
            return [4, 0, 0, -1, -1, -1, len(self._arrays) - 1]
        raise TypeError(
            f"`mask` holds a rule that the native kernels do not know. Received: {term!r}"
        )

    def _align(self, align: Any) -> int:
        align = offset(align, *self._attention.lengths)
        return -1 if isinstance(align, int) and align == 0 else self._number(align)

    def _number(self, value: Any) -> int:
        self._numbers.append(tf.cast(tf.convert_to_tensor(value), tf.int32))
        return len(self._numbers) - 1
