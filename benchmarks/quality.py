"""Compares the translations of heed's Transformer with those of stock Keras layers and of torch's nn.Transformer.

    python -m benchmarks.quality [--to de] [--steps 6000] [--seeds 0 1 2] [--sides heed keras torch]

The text is what `heed data catalogs` finds on this machine. One in four of its full sentences is held out, chosen by
a hash, at most 1,000. Each side trains the tiny preset in its own process, with initial weights from its own
generator, on the same batches with the same learning rates. None stops early, and all decode greedily. Pairs of sides
are compared by paired bootstrap resampling, which covers the chance in the sentences but not that in the initial
weights, which is as large. With several seeds, the difference of the means has an interval that covers both. Results
that the folder holds already are kept.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import sacrebleu
from numpy.typing import NDArray

from benchmarks.translators import TRANSLATORS
from heed.seq2seq import RunFolder, TextTask, start_run
from heed.seq2seq.evaluating.comparison import compare
from heed.seq2seq.evaluating.evaluation import Answer, Evaluation
from heed.seq2seq.tasks.task import Item
from heed.seq2seq.text import catalogs
from heed.seq2seq.text.pair_store import hash_texts

ROOT = Path(__file__).parents[1]
MOST, ONE_IN, LEAST_WORDS = 1_000, 4, 5
SAMPLES = 1_000


def main() -> None:
    """Write the text, train all sides, and compare them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--to", default="de", help="language of the translations (de)")
    parser.add_argument("--steps", type=int, default=6_000, help="training steps (6000)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="seeds of batches and weights (0)"
    )
    parser.add_argument("--sides", nargs="+", choices=list(TRANSLATORS), default=list(TRANSLATORS))
    parser.add_argument("--folder", type=Path, help="folder to keep text, runs and translations")
    parser.add_argument("--side", nargs=3, metavar="WORD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        train_and_translate(*options.side)
        return
    with tempfile.TemporaryDirectory() as temporary:
        compare_sides(options, options.folder or Path(temporary))


def write_text(language: str, folder: Path) -> None:
    """Write pairs.tsv for training and test.tsv for the comparison."""
    pairs = catalogs.read_pairs(language)
    keys = hash_texts([source for source, _ in pairs]).tolist()
    full = [
        len(source.split()) >= LEAST_WORDS and source[-1] in ".!?" and target[-1:] in ".!?"
        for source, target in pairs
    ]
    order = sorted(range(len(pairs)), key=lambda i: keys[i])
    most = min(MOST, sum(full) // ONE_IN)
    held_out = set([i for i in order if full[i]][:most])
    for name, chosen in (("test.tsv", held_out), ("pairs.tsv", set(order) - held_out)):
        lines = ("\t".join(pairs[i]) + "\n" for i in sorted(chosen))
        (folder / name).write_text("".join(lines), encoding="utf-8")


def train_and_translate(side: str, run: str, out: str) -> None:
    """Trains one side in this process; writes its translations of the held-out sentences and its training time."""
    folder = RunFolder.open(run)
    items = folder.task().evaluation_items()
    began = time.monotonic()
    ids = importlib.import_module(TRANSLATORS[side]).translate(folder, [i.ids for i in items])
    results = {"texts": folder.task().decode(ids), "seconds": time.monotonic() - began}
    Path(out).write_text(json.dumps(results), encoding="utf-8")


def compare_sides(options: argparse.Namespace, folder: Path) -> None:
    """Trains each side, and prints how well it translates and how it differs from heed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(options.to, folder)
    task = TextTask.create(
        folder / "pairs.tsv", test_source=folder / "test.tsv", vocabulary_size=4_000
    )
    items = task.evaluation_items()
    print(f"{platform.processor() or platform.machine()}; {task.description}", flush=True)
    print(f"{len(items):,} held-out sentences; {options.steps:,} steps of 64 pairs")
    results: dict[str, list[Evaluation]] = {side: [] for side in options.sides}
    for seed in options.seeds:
        run = open_run(folder / f"run-{seed}", task, options.steps, seed)
        for side, evaluations in results.items():
            evaluations.append(evaluate_side(side, run, items, folder / f"{side}-{seed}.json"))
            print(f"seed {seed}, {side}: {evaluations[-1].seconds:.0f} s", flush=True)
        latest = {side: evaluations[-1] for side, evaluations in results.items()}
        print_comparisons(f"seed {seed}", latest)
    if len(options.seeds) > 1:
        for side in (name for name in results if name != "heed" and "heed" in results):
            comparison = compare_over_seeds(results[side], results["heed"])
            print(f"all seeds, {side} and heed: {comparison}")


def open_run(path: Path, task: TextTask, steps: int, seed: int) -> RunFolder:
    """Open the run of a seed, or start a new one."""
    if path.exists():
        run = RunFolder.open(path)
        if run.options.steps != steps:
            raise SystemExit(f"{path} has {run.options.steps:,} steps: give another --folder")
        return run
    return start_run(
        path, task, preset="tiny", steps=steps, learning_rate=2e-3, patience=0, seed=seed
    )


def evaluate_side(side: str, run: RunFolder, items: Sequence[Item], out: Path) -> Evaluation:
    """Trains and evaluates one side in a separate process, unless `out` has its results."""
    if not out.exists():
        words = ("--side", side, str(run.path), str(out))
        subprocess.run([sys.executable, "-m", "benchmarks.quality", *words], cwd=ROOT, check=True)
    results = json.loads(out.read_text(encoding="utf-8"))
    answers = [
        Answer(item.text, text, item.reference, "text")
        for item, text in zip(items, results["texts"], strict=True)
    ]
    return Evaluation(answers, results["seconds"])


def compare_over_seeds(first: Sequence[Evaluation], second: Sequence[Evaluation]) -> str:
    """Return the mean BLEU of two sides over their seeds, and the 95% interval of the difference.

    The bootstrap resamples sentences for both sides together, and seeds for each side separately, because their initial
    weights are independent.
    """
    rng = np.random.default_rng(0)
    sides = [
        np.stack([count_ngrams(one) for one in evaluations]) for evaluations in (first, second)
    ]
    means = [np.mean([compute_bleu(counts.sum(axis=0)) for counts in side]) for side in sides]
    differences = []
    for _ in range(SAMPLES):
        sentences = rng.integers(sides[0].shape[1], size=sides[0].shape[1])
        scores = [
            [compute_bleu(counts) for counts in side[:, sentences].sum(axis=1)] for side in sides
        ]
        one, other = (np.mean(rng.choice(of_side, len(of_side))) for of_side in scores)
        differences.append(other - one)
    low, high = np.percentile(differences, [2.5, 97.5])
    difference = means[1] - means[0]
    return f"BLEU {means[0]:.1f} and {means[1]:.1f}: {difference:+.1f}, between {low:+.1f} and {high:+.1f}"


def count_ngrams(evaluation: Evaluation) -> NDArray[np.int64]:
    """(N, 10): for each answer the numbers of right and of all n-grams of 1 to 4 words, and both lengths."""
    metric = sacrebleu.BLEU(effective_order=True)
    found = [metric.sentence_score(one.translation, [one.reference]) for one in evaluation.answers]
    return np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found])


def compute_bleu(counts: NDArray[np.int64]) -> float:
    """Return the BLEU of a text, from the sum of its sentences' counts."""
    *ngrams, length, reference_length = counts.tolist()
    score = sacrebleu.BLEU.compute_bleu(ngrams[:4], ngrams[4:], length, reference_length)
    return float(score.score)


def print_comparisons(title: str, evaluations: Mapping[str, Evaluation]) -> None:
    """Print how heed differs from each other side, if it is among them."""
    for side in (name for name in evaluations if name != "heed" and "heed" in evaluations):
        for one in compare(evaluations[side], evaluations["heed"]):
            print(f"{title}, {side} and heed: {one}", flush=True)


if __name__ == "__main__":
    main()
