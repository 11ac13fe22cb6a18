"""Faults in `heed.distributed` and in training on several workers."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_DISTRIBUTED, _OF_DISTRIBUTED = "src/heed/distributed", "tests/distributed"
_SEQ2SEQ = "src/heed/seq2seq"

FAULTS = (
    Fault(
        "each worker takes the whole batch",
        f"{_SEQ2SEQ}/training/_step.py",
        "tf.constant(rows[self._workers.rank :: count])",
        "tf.constant(rows)",
        (f"{_OF_DISTRIBUTED}/test_training.py",),
    ),
    Fault(
        "all replicas drop the same numbers",
        f"{_SEQ2SEQ}/training/_workers.py",
        "(first + number * _ODD) % 2**32, second",
        "first, second",
        ("tests/seq2seq/training/test_workers.py",),
    ),
    Fault(
        "a follower counts as the cause",
        f"{_DISTRIBUTED}/processes.py",
        "(end.code == self._follower_status, not end.silent, end.code)",
        "(not end.silent, -end.code)",
        (f"{_OF_DISTRIBUTED}/test_processes.py",),
    ),
    Fault(
        "a worker outlives its supervisor",
        f"{_DISTRIBUTED}/processes.py",
        "ctypes.CDLL(None).prctl(1, 9)",
        "ctypes.CDLL(None).prctl(1, 0)",
        (f"{_OF_DISTRIBUTED}/test_processes.py",),
    ),
    Fault(
        "a worker that hangs is waited for",
        f"{_DISTRIBUTED}/processes.py",
        "if process.end is None and silent > self._silence:",
        "if False:",
        (f"{_OF_DISTRIBUTED}/test_processes.py",),
    ),
    Fault(
        "an error of the user's is tried again",
        f"{_DISTRIBUTED}/supervisor.py",
        "if failure.code in _FINAL and not failure.silent:",
        "if False:",
        (f"{_OF_DISTRIBUTED}/test_supervisor.py",),
    ),
    Fault(
        "workers with different configs train together",
        f"{_DISTRIBUTED}/meeting.py",
        "            if differences:",
        "            if False:",
        (f"{_OF_DISTRIBUTED}/test_meeting.py",),
    ),
    Fault(
        "pieces of a message are joined in another order",
        "src/heed/ops/backends/tensorflow/ring/workers.py",
        "tf.concat(pieces, 0)",
        "tf.concat(pieces[::-1], 0)",
        (f"{_OF_DISTRIBUTED}/test_ring_attention.py",),
    ),
    Fault(
        "the launch folder is written before the batch is checked",
        "src/heed/cli/_train_launch.py",
        "if not options.batch_tokens and options.batch_size % launch.workers:",
        "if False:",
        (f"{_OF_DISTRIBUTED}/test_training.py",),
    ),
)
