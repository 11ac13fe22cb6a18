"""Runs Keras' own tests of attention, which ship in its wheel, on heed.

    python -m tests.keras_suite accelerated    # Keras' layers and op, after heed.accelerate()
    python -m tests.keras_suite layers         # heed.layers.MultiHeadAttention in the place of Keras' classes

They run on the backend of KERAS_BACKEND: first on stock Keras, to see which of them attend at all, then on heed. The
answer is 0 only if all pass and each test that attended on stock Keras attended on heed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = {
    "stock": ("keras.src.layers.attention", "keras.src.ops.nn_test"),
    "accelerated": ("keras.src.layers.attention", "keras.src.ops.nn_test"),
    "layers": (
        "keras.src.layers.attention.multi_head_attention_test",
        "keras.src.layers.attention.grouped_query_attention_test",
    ),
}
# What Keras promises and heed does not, by mode.
_FLASH = "scores may be requested with flash_attention=True"
_FLASH_DROPOUT = "dropout is refused with flash_attention=True"
_TEXT = "errors have Keras' text"
DOES_NOT_APPLY = {
    "stock": {},
    "accelerated": {
        "GroupedQueryAttentionTest::test_flash_attention_with_errors": _FLASH,
        "MultiHeadAttentionTest::test_flash_attention_with_errors": _FLASH,
    },
    "layers": {
        "GroupedQueryAttentionTest::test_causal_only_skipped_for_subclass": (
            "a subclass with GroupQueryAttention's own signature of the private `_compute_attention`"
        ),
        "GroupedQueryAttentionTest::test_shape_mismatch_error_query_value_dim_mismatch": (
            "query and value may have different widths"
        ),
        "GroupedQueryAttentionTest::test_flash_attention_with_errors": _FLASH_DROPOUT,
        "MultiHeadAttentionTest::test_flash_attention_with_errors": _FLASH_DROPOUT,
        "MultiHeadAttentionTest::test_masking_with_different_shapes": "masks may be floats",
        "MultiHeadAttentionTest::test_invalid_scalar_args_rejected": _TEXT,
        "MultiHeadAttentionTest::test_multi_head_attention_output_shape_error": _TEXT,
    },
}
MODE, ANSWER = "HEED_KERAS_SUITE", "HEED_KERAS_SUITE_ANSWER"


# In the process that runs the tests, where this file is a plugin of pytest.


class Calls:
    """How often attention was computed."""

    def __init__(self) -> None:
        self.number = 0

    def counting(self, owner: Any, name: str) -> None:
        """Count the calls of a function from now on."""
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.number += 1
            return original(*args, **kwargs)

        setattr(owner, name, counted)


def start(mode: str) -> Callable[[], int]:
    """Put heed (or nothing) in place; return how to ask for the number of calls."""
    import keras

    calls = Calls()
    if mode == "accelerated":
        import heed

        report = heed.accelerate().report
        return lambda: sum(report().calls.values())
    if mode == "layers":
        stand_in()
        from heed.layers import MultiHeadAttention

        calls.counting(MultiHeadAttention, "_compute_attention")
        return lambda: calls.number
    from heed.keras_modules import backend_module

    calls.counting(backend_module("nn"), "dot_product_attention")
    calls.counting(keras.layers.Attention, "call")
    for cls in (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention):
        calls.counting(cls, "_compute_attention")
    return lambda: calls.number


def stand_in() -> None:
    """Replace Keras' multi-head classes by heed's."""
    import keras
    from keras.src import layers

    from heed.layers import MultiHeadAttention

    @keras.saving.register_keras_serializable(package="heed_tests")
    class GroupQueryAttention(MultiHeadAttention):
        """With the constructor of Keras' class."""

        @property
        def sliding_window(self) -> int | None:
            return self._sliding_window

        def __init__(
            self, head_dim: int, num_query_heads: int, num_key_value_heads: int, **options: Any
        ) -> None:
            super().__init__(
                num_query_heads, head_dim, num_key_value_heads=num_key_value_heads, **options
            )

        def get_config(self) -> dict[str, Any]:
            config = super().get_config()
            for name in ("value_dim", "output_shape", "attention_axes"):
                del config[name]
            names = {"num_heads": "num_query_heads", "key_dim": "head_dim"}
            return {names.get(name, name): value for name, value in config.items()}

    layers.MultiHeadAttention = MultiHeadAttention
    layers.GroupQueryAttention = layers.GroupedQueryAttention = GroupQueryAttention


class Recorder:
    """A plugin of pytest that notes each test's outcome and number of calls."""

    def __init__(self, mode: str) -> None:
        self.calls = start(mode)
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        before = self.calls()
        yield
        self._of(item.nodeid)["calls"] = self.calls() - before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._of(report.nodeid)
        if report.when == "call" or report.outcome != "passed":
            test["outcome"] = report.outcome
            test["reason"] = str(report.longrepr)[-2000:] if report.longrepr else ""

    def _of(self, node: str) -> dict[str, Any]:
        # Without the file, whose path depends on what else is run.
        return self.tests.setdefault(node.split("::", 1)[1], {"calls": 0})

    def pytest_sessionfinish(self) -> None:
        Path(os.environ[ANSWER]).write_text(json.dumps(self.tests))


def pytest_configure(config: pytest.Config) -> None:
    if MODE in os.environ:
        config.pluginmanager.register(Recorder(os.environ[MODE]))


# In the process of the command.


def run(mode: str) -> dict[str, dict[str, Any]]:
    """Return the outcome of each test."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        environment = {
            **os.environ,
            MODE: mode,
            ANSWER: str(answer),
            "KERAS_BACKEND": os.environ.get("KERAS_BACKEND", "tensorflow"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.keras_suite"]
        command += ["-p", "no:cacheprovider", "-k", "attention or Attention", "--pyargs"]
        result = subprocess.run(
            [*command, *TESTS[mode]], cwd=folder, env=environment, capture_output=True, text=True
        )
        if not answer.exists():
            raise RuntimeError(result.stdout[-3000:] + result.stderr[-3000:])
        return json.loads(answer.read_text())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.keras_suite", description=__doc__)
    parser.add_argument("mode", choices=("accelerated", "layers"))
    mode = parser.parse_args(arguments).mode
    stock, ours = run("stock"), run(mode)
    for name, reason in DOES_NOT_APPLY[mode].items():
        if ours.get(name, {}).get("outcome") == "failed":
            print(f"does not apply: {name}: {reason}")
            del ours[name]
    attend = {name for name, test in stock.items() if name in ours and test["calls"]}
    outcomes = {
        outcome: sorted(name for name, test in ours.items() if test.get("outcome") == outcome)
        for outcome in ("passed", "skipped", "failed")
    }
    missed = sorted(name for name in attend if not ours[name]["calls"])
    for name in outcomes["failed"]:
        print(f"FAILED {name}\n{ours[name]['reason']}\n")
    for name in missed:
        print(f"NOT ON HEED {name}: {stock[name]['calls']} calls on stock Keras")
    reasons = sorted({ours[name]["reason"].rsplit(": ", 1)[-1] for name in outcomes["skipped"]})
    for reason in reasons:
        print(f"skipped: {reason}")
    total = sum(test["calls"] for test in ours.values())
    print(
        f"{mode}: {len(outcomes['passed'])} passed, {len(outcomes['failed'])} failed, "
        f"{len(outcomes['skipped'])} skipped; {len(attend)} tests attend on stock Keras, "
        f"{len(attend) - len(missed)} of them on heed, in {total} calls"
    )
    return int(bool(outcomes["failed"] or missed or not attend))


if __name__ == "__main__":
    sys.exit(main())
