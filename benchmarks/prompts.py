"""Measures how long `generate` takes to read prompts, with the engine and in the graph, in this heed and another.

    python -m benchmarks.prompts [--before PYTHON]

A language model with four layers and width 256 reads prompts of 256 tokens and generates one token. The best of several
calls counts; the sides take turns in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

BATCHES, WAYS, LENGTH, TURNS = (8, 1), ("engine", "graph"), 256, 2
ROOT = Path(__file__).parents[1]


def measure() -> dict[str, float]:
    """Measures the milliseconds of each way and batch size, in this process."""
    from heed.decoding import engine
    from heed.models import LanguageModel, LanguageModelConfig, generate

    config = LanguageModelConfig(1000, layers=4, width=256, num_heads=8, feed_forward_width=1024)
    model, rng, results = LanguageModel(config), np.random.default_rng(0), {}
    original = engine.unsupported_reasons
    for way in WAYS:
        reasons = ["the graph is timed"]
        engine.unsupported_reasons = original if way == "engine" else lambda *_, r=reasons: r
        for batch in BATCHES:
            prompt = rng.integers(3, 1000, (batch, LENGTH)).astype("int32")
            times = []
            for _ in range(4):
                begin = time.perf_counter()
                np.asarray(generate(model, prompt=prompt, max_length=LENGTH + 1))
                times.append(1e3 * (time.perf_counter() - begin))
            results[f"{way}, {batch} x {LENGTH} tokens"] = min(times)
    return results


def measure_with(python: str) -> dict[str, float]:
    """Measures in a process of this interpreter."""
    command = [python, str(Path(__file__)), "--one"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {name: float(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def main(arguments: list[str] | None = None) -> int:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", metavar="PYTHON", help="the interpreter of another heed")
    parser.add_argument("--one", action="store_true", help="measure here, once, as JSON")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure()))
        return 0
    sides = {"heed": sys.executable}
    if options.before:
        sides["before"] = options.before
    best: dict[str, dict[str, float]] = {name: {} for name in sides}
    for _ in range(TURNS):
        for name, python in sides.items():
            for case, value in measure_with(python).items():
                best[name][case] = min(value, best[name].get(case, value))
    columns = [*(f"{name}, ms" for name in sides), *(["ratio"] if options.before else [])]
    print(f"| time of | {' | '.join(columns)} |")
    print("| ------- |" + " ------: |" * len(columns))
    for case in best["heed"]:
        times = [best[name][case] for name in sides]
        ratio = [f"{times[1] / times[0]:.1f}"] if options.before else []
        print(f"| {case} | {' | '.join([*(f'{x:.1f}' for x in times), *ratio])} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
