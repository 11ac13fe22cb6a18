"""Runs an exported model on samples, in a new process without heed, and compares it with the original."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.export.errors import ExportError

# Bounds on the RMS of the differences divided by the RMS of the outputs, by precision.
TOLERANCES = {
    "float32": 1e-4,
    "bfloat16": 3e-2,
    "float16": 1e-2,
    "int8": 0.2,
    "q8_0": 0.2,
    "q4_0": 0.8,
}
# The least share of equal sentences, for formats that give only tokens.
_SAME = {"float32": 0.99, "bfloat16": 0.9, "float16": 0.95, "int8": 0.8}
_WITHOUT_HEED = "import sys; sys.modules['heed'] = None; "
_RUN = "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"

Arrays = Mapping[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Samples:
    """Inputs, the model's outputs for them, and its speed.

    The outputs of a model that decodes are "scores" (B, T, V), "probabilities" (B, T) of the tokens that it writes, and
    "tokens" (N, T). Outputs that an artefact lacks are not compared.
    """

    inputs: Arrays  # for `run.py --check`
    answers: Arrays  # the model's outputs
    count: int
    seconds: float  # the model's time for all of them


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The result of comparing an exported model with the original.

    Attributes:
        samples: the number of samples.
        largest_difference: the largest over all outputs, in their own unit; None if only tokens can be compared.
        relative_difference: the RMS of the differences divided by the RMS of the outputs, or None.
        same: the share of samples with the same tokens, or None for a model that does not decode.
        milliseconds: the exported model's time for a sample.
        model_milliseconds: the original's.
    """

    samples: int
    largest_difference: float | None
    relative_difference: float | None
    same: float | None
    milliseconds: float
    model_milliseconds: float

    def __str__(self) -> str:
        parts = []
        if self.largest_difference is not None:
            parts.append(f"largest difference {self.largest_difference:.2g}")
        if self.same is not None:
            parts.append(f"{self.same:.1%} the same tokens")
        return (
            f"{self.samples:,} samples: {', '.join(parts)}; {self.milliseconds:.2f} ms a sample "
            f"(heed {self.model_milliseconds:.2f} ms)"
        )


def call_timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function twice; return the first result and the seconds of the second call (the first may compile)."""
    result = function()
    began = time.monotonic()
    function()
    return result, time.monotonic() - began


def verify(
    folder: Path, samples: Samples, precision: str, computes_in: str, needs_heed: bool
) -> Agreement:
    """Run an exported model in a separate process and compare its outputs with the original's.

    Args:
        folder: the artefact with its manifest.
        samples: inputs and the original's outputs.
        precision, computes_in: see `ExportFormat`; keys of `TOLERANCES`.
        needs_heed: whether the process may import heed.
    """
    found = _answers(folder, samples.inputs, needs_heed)
    seconds = float(found.pop("seconds"))
    largest = relative = same = None
    names = [name for name in samples.answers if name != "tokens" and name in found]
    if names:
        pairs = [(samples.answers[name], found[name]) for name in names]
        if any(ours.shape != theirs.shape for ours, theirs in pairs):
            shapes = "; ".join(f"{ours.shape} and {theirs.shape}" for ours, theirs in pairs)
            raise ExportError(f"the exported model gives other shapes: {shapes}")
        ours, theirs = (
            np.concatenate([pair[side].astype(np.float64).ravel() for pair in pairs])
            for side in range(2)
        )
        largest = float(np.abs(ours - theirs).max(initial=0.0))
        scale = float(np.sqrt(np.mean(np.square(ours)))) if ours.size else 0.0
        relative = float(np.sqrt(np.mean(np.square(ours - theirs)))) / max(scale, 1e-30)
    if "tokens" in samples.answers:
        same = float(np.mean(np.all(samples.answers["tokens"] == found["tokens"], axis=1)))
    took = (1_000 * x / samples.count for x in (seconds, samples.seconds))
    agreement = Agreement(samples.count, largest, relative, same, *took)
    if relative is not None:
        most = max(TOLERANCES[precision], TOLERANCES[computes_in])
        fits, bound = relative <= most, f"{most:g} of their size"  # False for NaN
    else:
        fits, bound = same is not None and same >= _SAME[precision], "the same tokens"
    if not fits:
        raise ExportError(
            f"the exported model differs from the original: {agreement} ({precision} allows {bound})"
        )
    return agreement


def _answers(folder: Path, inputs: Arrays, needs_heed: bool) -> dict[str, NDArray[Any]]:
    """Return the outputs of `run.py --check`."""
    with tempfile.TemporaryDirectory() as temporary:
        question, answer = Path(temporary) / "inputs.npz", Path(temporary) / "outputs.npz"
        np.savez(question, **inputs)  # type: ignore[arg-type]
        script = ("import sys; " if needs_heed else _WITHOUT_HEED) + _RUN
        runner = folder.resolve() / "run.py"  # the child works in another folder
        # -B: nothing is written beside the artefact's files.
        words = [sys.executable, "-B", "-c", script, str(runner), "--check"]
        done = subprocess.run(
            [*words, str(question), str(answer)], capture_output=True, text=True, cwd=temporary
        )
        if done.returncode or not answer.exists():
            lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
            raise ExportError(f"the exported model does not run: {lines[-1]}")
        with np.load(answer) as arrays:
            return dict(arrays)
