"""Random malformed calls of TensorFlow's native ops, also as a program of its own.

    python -m tests.native.fuzz_ops FIRST_SEED COUNT

heed never makes such calls, but a graph that was saved, changed and loaded may hold any. Each must end with a result or
with an error of TensorFlow's, never with the process. It prints each seed before its call.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from heed.ops.backends.tensorflow.native import library
from heed.ops.core._program import CoreProgram
from heed.ops.core.form import Form, Header, Rule
from heed.ops.score_mod.operations import NUMBERS as OPCODES
from heed.ops.score_mod.operations import Type
from heed.ops.score_mod.program import Instruction, Program

# What TensorFlow raises for bad input, while tracing and when running.
REFUSALS = (tf.errors.InvalidArgumentError, ValueError, TypeError, tf.errors.ResourceExhaustedError)
SIZES = (0, 1, 2, 3, 7)
NUMBERS = (-2, -1, 0, 1, 2, 8, 10**6, 2**31 - 1, 2**62, -(2**63))
REALS = (np.nan, np.inf, -np.inf, -1, 0, 1, 2, 1e300)


def _program() -> tuple[int, ...]:
    """Add a table by key to the score, and keep pairs by an array of integers by query; operands 7 and 8."""
    rows: list[tuple[str, Type, tuple[int, ...]]] = [
        ("SCORE", Type.FLOAT, ()),
        ("KEY", Type.INT, ()),
        ("LOAD", Type.FLOAT, (0, 1)),
        ("ADD", Type.FLOAT, (0, 0, 2)),
        ("QUERY", Type.INT, ()),
        ("LOAD", Type.INT, (1, 4)),
        ("LE", Type.BOOL, (0, 5, 1)),
    ]
    instructions = tuple(Instruction(OPCODES[name], kind, *rest) for name, kind, rest in rows)
    program = Program(instructions, (Type.FLOAT, Type.INT), score=3, keep=6)
    return CoreProgram(program, (7, 8)).to_words()


PROGRAM = _program()


def good(rng: np.random.Generator, heads_first: bool, gradient: bool) -> dict[str, Any]:
    """Return the arguments of a call that is right."""
    batch, queries, keys, kv_heads, width, value_width = (int(n) for n in rng.integers(1, 6, 6))
    heads = kv_heads * int(rng.integers(1, 3))

    def tensor(length: int, count: int, last: int) -> np.ndarray:
        shape = (batch, count, length, last) if heads_first else (batch, length, count, last)
        return rng.normal(size=shape).astype(np.float32)

    arguments = {
        "query": tensor(queries, heads, width),
        "key": tensor(keys, kv_heads, width),
        "value": tensor(keys, kv_heads, value_width),
        # Lengths, segments, a dense mask, dilation, and where ALiBi stands.
        "form": Form(
            (0, 0.5, 0),
            Header(
                0, int(heads_first), 2, -1, bias=0, slopes=1, seed=2, rules=5, program=len(PROGRAM)
            ),
            (
                Rule(2, 0, 0, 0, 0, -1, 3, -1, -1),
                Rule(3, 0, 0, 0, 0, -1, 4, 5, -1),
                Rule(4, 0, 0, 0, 0, -1, -1, -1, 6),
                Rule(5, 2, 0, 0, 0, 3, -1, -1, -1),
                Rule(-1, 0, 0, 4, 0, -2, -1, -1, -1),
            ),
            PROGRAM,
        ).pack(),
        "operands": [
            rng.normal(size=(1, heads, 1, keys)).astype(np.float32),
            np.ones(heads, np.float32),
            np.zeros(2, np.uint32),
            np.full(batch, keys, np.int32),
            np.zeros((batch, queries), np.int32),
            np.zeros((batch, keys), np.int32),
            np.ones((1, 1, queries, keys), bool),
            np.ones(keys, np.float32),
            np.zeros(queries, np.int32),
        ],
    }
    if gradient:
        output = tensor(queries, heads, value_width)
        row = np.ones((batch, heads, queries), np.float32)
        arguments |= {"output": output, "softmax": np.ones(2 * row.size, np.float32)}
        arguments |= {"output_gradient": output, "lse_gradient": row, "G": 1}
    return arguments


def packed(*numbers: float) -> bytes:
    """Return the form of an op that works row by row."""
    return np.array(numbers).tobytes()


def good_rows(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """Return the same of an op that works row by row, with its name."""
    shape = tuple(int(n) for n in rng.integers(1, 6, int(rng.integers(1, 4))))
    x, numbers = rng.normal(size=shape).astype(np.float32), np.ones(shape[:-1], np.float32)
    pair, vector = np.stack([numbers, numbers]), np.ones(shape[-1:], np.float32)
    loss = {
        "logits": x,
        "labels": np.zeros(shape[:-1], np.int32),
        "smoothing": np.zeros((), np.float32),
        "form": packed(2.0, -1.0),
    }
    norm = {"x": x, "scale": vector, "offset": vector, "form": packed(2.0, 1e-6, 0.0)}
    drop = {"x": x, "seed": np.zeros(2, np.uint32), "residual": [x], "form": packed(2.0, 0.5)}
    ops: list[tuple[str, dict[str, Any]]] = [
        ("heed_cross_entropy", loss),
        ("heed_cross_entropy_gradient", loss | {"softmax": pair, "losses_gradient": numbers}),
        ("heed_normalization", norm),
        ("heed_normalization_gradient", norm | {"moments": pair, "y_gradient": x}),
        ("heed_dropout", drop),
    ]
    return ops[int(rng.integers(0, len(ops)))]


def spoil(rng: np.random.Generator, arguments: dict[str, Any]) -> None:
    """Make one change, which may or may not make the call wrong."""
    name = str(rng.choice(sorted(arguments)))
    value = arguments[name]
    if name == "form":
        arguments[name] = _spoil_form(rng, value)
    elif name == "G":
        arguments[name] = int(rng.choice(SIZES))
    elif isinstance(value, list):
        change = rng.integers(0, 3)
        if not value:
            return
        if change == 0:
            del value[int(rng.integers(0, len(value)))]
        elif change == 1:
            value.append(value[int(rng.integers(0, len(value)))])
        else:
            index = int(rng.integers(0, len(value)))
            value[index] = _reshaped(rng, value[index])
    else:
        arguments[name] = _reshaped(rng, value)


def _spoil_form(rng: np.random.Generator, form: bytes) -> bytes:
    """Return one other number, or bytes too few; a form cut below one number stays."""
    if len(form) < 8:
        return form
    if rng.random() < 0.1:
        return form[: int(rng.integers(0, len(form)))]
    place = 8 * int(rng.integers(0, len(form) // 8))
    real, integer = rng.choice(REALS), rng.choice(NUMBERS)
    number = np.float64(real) if rng.random() < 0.5 else np.int64(integer)
    return form[:place] + number.tobytes() + form[place + 8 :]


def _reshaped(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return the same type in another shape: of another rank, shorter, empty, or empty and huge."""
    if rng.random() < 0.1:
        shape = [0, int(rng.choice([2**20, 2**31, 2**40])), 1, 3]
        return np.zeros(rng.permutation(shape), x.dtype)
    shape = list(x.shape)
    if shape and rng.random() < 0.7:
        place = int(rng.integers(0, len(shape)))
        shape[place] = int(rng.choice(SIZES)) if x.size else 0  # an empty one may be huge
    else:
        shape = [int(n) for n in rng.choice(SIZES, int(rng.integers(0, 6)))]
    return np.ones(shape, x.dtype)


def empty_and_huge() -> list[tuple[str, dict[str, Any]]]:
    """Call whose inputs are empty, but whose results or strides no int64 holds."""
    rows = {"scale": [], "offset": [], "form": packed(1.0, 1e-6, 0.0)}

    def zeros(*shape: int) -> Any:
        return tf.zeros(shape)

    def attention(*shape: int) -> dict[str, Any]:
        x = tf.zeros(shape)
        return {"query": x, "key": x, "value": x, "form": form(-1), "operands": []}

    def form(bias: int) -> bytes:
        return Form((0, 1, 0), Header(0, 0, 1, -1, bias, -1, -1, 0), ()).pack()

    product = {"x": zeros(2**40, 0), "weights": zeros(2**24, 0, 1)}
    cache = {"cache": zeros(0, 1, 2**62, 4), "update": zeros(0, 1, 2**62, 4), "index": 0}
    bias = {"form": form(0), "operands": [zeros(0, 2**62, 4, 4)]}
    return [
        ("heed_product", product | {"form": packed(1.0, 0.0)}),
        ("heed_normalization", rows | {"x": zeros(2**40, 2**22, 0)}),
        ("heed_cache_write", cache),
        ("heed_attention", attention(1, 0, 2**62, 4)),
        ("heed_attention", attention(0, 2**31, 2**31, 2**16)),
        ("heed_attention", attention(2**31, 0, 2**31, 2)),
        ("heed_attention", attention(0, 1, 1, 1) | bias),
    ]


def call(seed: int) -> bool:
    """Return whether the call was carried out."""
    rng = np.random.default_rng(seed)
    heads_first, gradient, in_rows = (bool(n) for n in rng.integers(0, 2, 3))
    if in_rows:
        name, arguments = good_rows(rng)
    else:
        name = f"heed_attention{'_gradient' * gradient}"
        arguments = good(rng, heads_first, gradient)
    for _ in range(int(rng.integers(0, 3))):
        spoil(rng, arguments)
    form = arguments["form"]
    if not in_rows and len(form) % 8 == 0 and rng.random() < 0.5:
        arguments["operands"].append(np.frombuffer(form, np.int64))
        arguments["form"] = b""
    return carried_out(name, arguments, in_function=rng.random() < 0.2)


def carried_out(name: str, arguments: dict[str, Any], in_function: bool = False) -> bool:
    """Return whether a call succeeds. It may be refused, with a reason."""
    op = getattr(library.ops(), name)
    if in_function:
        op = tf.function(op, autograph=False)
    try:
        op(**arguments)
    except tf.errors.InternalError as error:
        # A graph with more gradients than the program has arrays: TensorFlow finds that one was never set.
        if "Missing" not in str(error):
            raise
        return False
    except REFUSALS as error:
        if len(str(error)) < 20:
            raise AssertionError(f"refused without a reason: {error!r}") from error
        return False
    return True


def main(first: str, count: str) -> None:
    for name, arguments in empty_and_huge():
        print(f"empty and huge: {name}", flush=True)
        carried_out(name, arguments)
    done = 0
    for seed in range(int(first), int(first) + int(count)):
        print(f"seed {seed}", flush=True)
        done += call(seed)
    print(f"{done} of {count} were right")


if __name__ == "__main__":
    main(*sys.argv[1:])
