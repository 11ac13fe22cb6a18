"""Attentions over a split sequence. As a program, it runs them on several workers in one process:

python -m tests.distributed.ring_cases WORKERS IMPLEMENTATION RESULTS.npz CASE [CASE ...]
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np

from tests import reference_masks
from tests.strategies import cast

Array = np.ndarray
BATCH, HEADS, KV_HEADS, WIDTH, VALUE_WIDTH = 2, 4, 2, 8, 12
# In the order of a call, with the axis of the sequence in a result.
RESULTS = {"output": 1, "lse": 2, "query": 1, "key": 1, "value": 1}


@dataclasses.dataclass(frozen=True)
class Case:
    """An attention over a whole sequence.

    Attributes:
        lengths: T and S in stretches of a worker, of which there are two for each worker.
        mask: rules as (name, arguments), made into a `Mask` and, independently, into an array.
        options: further arguments.
        dtype: of query, key and value.
        as_function: whether the causal mask is given as a function.
    """

    lengths: tuple[int, int] = (5, 5)
    mask: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    dtype: str = "float32"
    as_function: bool = False

    def sizes(self, workers: int) -> tuple[int, int]:
        """Return T and S."""
        return 2 * workers * self.lengths[0], 2 * workers * self.lengths[1]

    def arrays(self, workers: int) -> dict[str, Array]:
        """Return query, key, value, and the incoming gradients of output and log-sum-exp."""
        queries, keys = self.sizes(workers)
        shapes = {
            "query": (BATCH, queries, HEADS, WIDTH),
            "key": (BATCH, keys, KV_HEADS, WIDTH),
            "value": (BATCH, keys, KV_HEADS, VALUE_WIDTH),
            "d_output": (BATCH, queries, HEADS, VALUE_WIDTH),
            "d_lse": (BATCH, HEADS, queries),
        }
        draw = np.random.default_rng(0)
        made = {name: draw.normal(size=shape) for name, shape in shapes.items()}
        return {
            name: x.astype("float32")
            if name == "d_lse" and self.dtype != "float64"
            else cast(x, self.dtype)
            for name, x in made.items()
        }

    def dense_mask(self, workers: int) -> Array | None:
        """Return the rules as an array (B, N or 1, T, S), by plain loops."""
        queries, keys = self.sizes(workers)
        mask = None
        rules = [*self.mask, *([("causal", ())] if self.options.get("is_causal") else [])]
        for name, arguments in rules:
            if name == "dense":
                made = arguments[0]
            else:
                made = getattr(reference_masks, name)(BATCH, queries, keys, *arguments)
            mask = made if mask is None else mask & made
        return mask

    def call_options(self) -> dict[str, Any]:
        """Return the arguments of the op, with a `Mask`."""
        from heed.ops import Mask

        if self.as_function:
            slopes = self.options["alibi_slopes"]
            return {"mask": Mask.where(lambda b, h, q, k: k <= q), "alibi_slopes": slopes}
        mask = None
        for name, arguments in self.mask:
            made = getattr(Mask, name)(*arguments)
            mask = made if mask is None else mask & made
        return {"mask": mask, **self.options}


_IDS = np.sort(np.random.default_rng(1).integers(0, 3, (BATCH, 20)), axis=1)
_SLOPES = np.array([0.1, 0.2, 0.3, 0.4], "float32")
CASES = {
    "causal": Case(options={"is_causal": True}),
    # rows that see nothing: all of batch entry 0, the end of entry 1
    "padded": Case(mask=(("lengths", ([0, 17], [20, 18])),), options={"is_causal": True}),
    "window": Case(mask=(("window", (3, 0)),)),
    "everything": Case(),
    "window to both sides": Case(mask=(("window", (3, 4)),), options={"soft_cap": 2.0}),
    "prefix": Case(mask=(("prefix", ([3, 9],)),)),
    "segments": Case(mask=(("segments", (_IDS,)),), options={"is_causal": True}),
    "dilated": Case(mask=(("dilated", (3,)),)),
    "dense": Case(
        mask=(("dense", (np.random.default_rng(2).random((BATCH, HEADS, 20, 20)) < 0.3,)),)
    ),
    "longer keys": Case((3, 7), mask=(("causal", ("bottom_right",)),), options={"scale": 0.7}),
    "ALiBi": Case(options={"alibi_slopes": _SLOPES}),
    "ALiBi, causal": Case(options={"alibi_slopes": _SLOPES, "is_causal": True}),
    "causal function": Case(options={"alibi_slopes": _SLOPES, "is_causal": True}, as_function=True),
    "float64": Case(options={"is_causal": True}, dtype="float64"),
    "bfloat16": Case((40, 40), options={"is_causal": True}, dtype="bfloat16"),
    "large scores": Case((9, 9), options={"is_causal": True, "scale": 300.0}, dtype="float64"),
}


def main(workers: int, implementation: str, file: str, names: list[str]) -> None:
    """Run cases and save their results, joined, in float64."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * workers
    tf.config.set_logical_device_configuration(cpu, devices)

    import heed
    from heed.distributed import join_sequence, ring_attention, split_sequence
    from heed.ops.backends.tensorflow.ring import workers as messages

    messages._PIECE = 256  # all messages here are small, and must have pieces
    heed.set_implementation(implementation)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{r}" for r in range(workers)])
    numbers = range(workers)
    saved = {}

    for name in names:
        case = CASES[name]
        # One graph gets each worker's parts as constants: distributed values would take longer.
        parts = [
            [split_sequence(x, workers, r, axis=2 if kind == "d_lse" else 1) for r in numbers]
            for kind, x in case.arrays(workers).items()
        ]

        def replica(parts=parts, options=case.call_options()):  # noqa: B008
            context = tf.distribute.get_replica_context()
            here = int(tf.get_static_value(context.replica_id_in_sync_group))
            *inputs, d_output, d_lse = [tf.constant(part[here]) for part in parts]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output, lse = ring_attention(*inputs, return_lse=True, **options)
            gradients = tape.gradient([output, lse], inputs, [d_output, d_lse])
            return [tf.cast(x, tf.float64) for x in (output, lse, *gradients)]

        graph = tf.function(lambda replica=replica: strategy.run(replica), autograph=False)
        for _ in range(2):  # keys of messages are used again
            results = graph()
        for (kind, axis), x in zip(RESULTS.items(), results, strict=True):
            local = [part.numpy() for part in strategy.experimental_local_results(x)]
            saved[f"{name}/{kind}"] = join_sequence(local, axis=axis)
    np.savez(file, **saved)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
