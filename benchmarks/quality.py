"""How well heed's Transformer translates beside the same model of stock Keras layers and of torch's nn.Transformer.

    python -m benchmarks.quality [--to de] [--steps 6000] [--seeds 0 1 2] [--sides heed keras torch]

The text is what `heed data catalogs` finds on this machine; one in four of its full sentences is held out, chosen by a
hash, at most 1,000. Each side is a process of its own and trains the tiny preset, its first weights drawn by its own
generator, on the same batches with the same rates: the same tokens in the same order. None stops early. All translate
greedily. Two sides are compared by paired bootstrap resampling. That knows of the chance in the sentences, not of the
chance in the first weights, which is as large: give several seeds, and the difference of the means comes with an
interval that knows of both. What a folder holds already is not trained again.
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
from heed.seq2seq import RunFolder, TextTask, catalogs, start_run
from heed.seq2seq.comparison import compare
from heed.seq2seq.evaluation import Answer, Evaluation
from heed.seq2seq.pair_store import hash_texts
from heed.seq2seq.task import Item

ROOT = Path(__file__).parents[1]
MOST, ONE_IN, LEAST_WORDS = 1_000, 4, 5
SAMPLES = 1_000


def main() -> None:
    """Makes the text, trains all sides, and compares them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--to", default="de", help="language of the translations (de)")
    parser.add_argument("--steps", type=int, default=6_000, help="of training (6000)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="of batches and weights (0)"
    )
    parser.add_argument("--sides", nargs="+", choices=list(TRANSLATORS), default=list(TRANSLATORS))
    parser.add_argument("--folder", type=Path, help="where text, run and answers are left")
    parser.add_argument("--side", nargs=3, metavar="WORD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        train_and_translate(*options.side)
        return
    with tempfile.TemporaryDirectory() as temporary:
        compare_sides(options, options.folder or Path(temporary))


def write_text(language: str, folder: Path) -> None:
    """pairs.tsv to train on and test.tsv to judge by."""
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
    """One side, in this process: the translations of the held-out sentences and how long training took."""
    folder = RunFolder.open(run)
    items = folder.task().evaluation_items()
    began = time.monotonic()
    found = importlib.import_module(TRANSLATORS[side]).translate(folder, [i.ids for i in items])
    said = folder.task().decode(found)
    seconds = time.monotonic() - began
    Path(out).write_text(json.dumps({"said": said, "seconds": seconds}), encoding="utf-8")


def compare_sides(options: argparse.Namespace, folder: Path) -> None:
    """Trains each side, and says how well it translates and how far from heed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(options.to, folder)
    task = TextTask.create(
        folder / "pairs.tsv", test_source=folder / "test.tsv", vocabulary_size=4_000
    )
    items = task.evaluation_items()
    print(f"{platform.processor() or platform.machine()}; {task.description}", flush=True)
    print(f"{len(items):,} full sentences to judge by; {options.steps:,} steps of 64 pairs")
    found: dict[str, list[Evaluation]] = {side: [] for side in options.sides}
    for seed in options.seeds:
        run = run_of(folder / f"run-{seed}", task, options.steps, seed)
        for side, evaluations in found.items():
            evaluations.append(evaluation(side, run, items, folder / f"{side}-{seed}.json"))
            print(f"seed {seed}, {side}: {evaluations[-1].seconds:.0f} s", flush=True)
        tell(f"seed {seed}", {side: evaluations[-1] for side, evaluations in found.items()})
    if len(options.seeds) > 1:
        for side in (name for name in found if name != "heed" and "heed" in found):
            print(f"all seeds, {side} and heed: {over_seeds(found[side], found['heed'])}")


def run_of(path: Path, task: TextTask, steps: int, seed: int) -> RunFolder:
    """The run of a seed, as it is there or new."""
    if path.exists():
        run = RunFolder.open(path)
        if run.options.steps != steps:
            raise SystemExit(f"{path} has {run.options.steps:,} steps: give another --folder")
        return run
    return start_run(
        path, task, preset="tiny", steps=steps, learning_rate=2e-3, patience=0, seed=seed
    )


def evaluation(side: str, run: RunFolder, items: Sequence[Item], out: Path) -> Evaluation:
    """What one side, in a process of its own, makes of the items."""
    if not out.exists():
        words = ("--side", side, str(run.path), str(out))
        subprocess.run([sys.executable, "-m", "benchmarks.quality", *words], cwd=ROOT, check=True)
    found = json.loads(out.read_text(encoding="utf-8"))
    answers = [
        Answer(item.text, said, item.reference, "text")
        for item, said in zip(items, found["said"], strict=True)
    ]
    return Evaluation(answers, found["seconds"])


def over_seeds(first: Sequence[Evaluation], second: Sequence[Evaluation]) -> str:
    """The mean BLEU of two sides over their seeds, and between which bounds the difference is, 95 times in 100.

    Sentences are drawn anew for both sides together, seeds for each by itself, as the first weights are.
    """
    rng = np.random.default_rng(0)
    sides = [np.stack([ngrams(one) for one in evaluations]) for evaluations in (first, second)]
    means = [np.mean([bleu(counts.sum(axis=0)) for counts in side]) for side in sides]
    differences = []
    for _ in range(SAMPLES):
        sentences = rng.integers(sides[0].shape[1], size=sides[0].shape[1])
        scores = [[bleu(counts) for counts in side[:, sentences].sum(axis=1)] for side in sides]
        one, other = (np.mean(rng.choice(of_side, len(of_side))) for of_side in scores)
        differences.append(other - one)
    low, high = np.percentile(differences, [2.5, 97.5])
    difference = means[1] - means[0]
    return f"BLEU {means[0]:.1f} and {means[1]:.1f}: {difference:+.1f}, between {low:+.1f} and {high:+.1f}"


def ngrams(evaluation: Evaluation) -> NDArray[np.int64]:
    """(N, 10): of each answer the n-grams of 1 to 4 words that are right, how many there are, and both lengths."""
    metric = sacrebleu.BLEU(effective_order=True)
    found = [metric.sentence_score(one.translation, [one.reference]) for one in evaluation.answers]
    return np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found])


def bleu(counts: NDArray[np.int64]) -> float:
    """The BLEU of a text, from the sum of its sentences' counts."""
    *grams, said, wanted = counts.tolist()
    return float(sacrebleu.BLEU.compute_bleu(grams[:4], grams[4:], said, wanted).score)


def tell(title: str, evaluations: Mapping[str, Evaluation]) -> None:
    """Prints how far heed is from each other side, if it is among them."""
    for side in (name for name in evaluations if name != "heed" and "heed" in evaluations):
        for one in compare(evaluations[side], evaluations["heed"]):
            print(f"{title}, {side} and heed: {one}", flush=True)


if __name__ == "__main__":
    main()
