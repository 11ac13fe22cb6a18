"""Whether an artefact does what the model does: run in a fresh process without heed, on the same samples."""

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

# The root mean square of the differences may be so much of that of the outputs, by what the artefact computes in.
TOLERANCES = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 1e-2, "int8": 0.2}
# Of sentences so many must come out the same, where only those can be compared.
_SAME = {"float32": 0.99, "bfloat16": 0.9, "float16": 0.95, "int8": 0.8}
_WITHOUT_HEED = "import sys; sys.modules['heed'] = None; "
_RUN = "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"

Arrays = Mapping[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Samples:
    """What a model was asked, what it answered, and how long it took.

    Attributes:
        given: what run.py is given with --check.
        answers: the model's own outputs, by name; of what decodes "scores" (B, T, V), the "probabilities" (B, T) that
            it gives the tokens which it writes, and "tokens" (N, T). What an artefact does not give is not compared.
        count: how many samples there are.
        seconds: what the model took for them.
    """

    given: Arrays
    answers: Arrays
    count: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far an artefact is from its model.

    Attributes:
        samples: how many were compared.
        largest_difference: of all outputs, in their own unit; None where only tokens could be compared.
        relative_difference: the root mean square of the differences in that of the outputs; or None.
        same: of what decodes, the share of samples with the same tokens; or None.
        milliseconds: a sample, of the artefact.
        model_milliseconds: the same of the model in heed.
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


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """What a function returns, and the seconds of its second call: the first may compile."""
    found = function()
    began = time.monotonic()
    function()
    return found, time.monotonic() - began


def verify(folder: Path, samples: Samples, precision: str, needs_heed: bool = False) -> Agreement:
    """Runs an artefact in a process of its own.

    Args:
        folder: of the artefact, with its manifest.
        samples: to compare it by.
        precision: what it computes in, a key of `TOLERANCES`.
        needs_heed: whether heed may be imported there.

    Raises:
        ExportError: if it does not run, or its answers are further from the model's than that precision excuses.
    """
    found = _answers(folder, samples.given, needs_heed)
    seconds = float(found.pop("seconds"))
    largest = relative = same = None
    compared = [name for name in samples.answers if name != "tokens" and name in found]
    if compared:
        pairs = [(samples.answers[name], found[name]) for name in compared]
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
    # Written so that a NaN fails.
    fits = (
        relative <= TOLERANCES[precision]
        if relative is not None
        else (same is not None and same >= _SAME[precision])
    )
    if not fits:
        bound = (
            f"{TOLERANCES[precision]:g} of their size"
            if relative is not None
            else "the same tokens"
        )
        raise ExportError(
            f"the exported model does not do what the model does: {agreement} ({precision} allows {bound})"
        )
    return agreement


def _answers(folder: Path, given: Arrays, needs_heed: bool) -> dict[str, NDArray[Any]]:
    with tempfile.TemporaryDirectory() as temporary:
        question, answer = Path(temporary) / "given.npz", Path(temporary) / "found.npz"
        np.savez(question, **given)  # type: ignore[arg-type]
        script = ("import sys; " if needs_heed else _WITHOUT_HEED) + _RUN
        runner = folder.resolve() / "run.py"  # the child works in another folder
        words = [sys.executable, "-c", script, str(runner), "--check"]
        done = subprocess.run(
            [*words, str(question), str(answer)], capture_output=True, text=True, cwd=temporary
        )
        if done.returncode or not answer.exists():
            lines = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
            raise ExportError(f"the exported model does not run: {lines[-1]}")
        with np.load(answer) as arrays:
            return dict(arrays)
