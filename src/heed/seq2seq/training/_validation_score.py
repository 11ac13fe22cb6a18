"""BLEU or chrF of greedy translations of validation sentences, during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heed.models import generate
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.runs.trained_model import assign, make_model
from heed.seq2seq.tasks.task import Task, pad_rows
from heed.seq2seq.text.scoring import choose_metrics, load_sacrebleu

_BATCH = 64
_MULTIPLE = 8  # sources are padded to a multiple of this, so that few shapes are compiled


class ValidationScore:
    """BLEU or chrF, by sacrebleu, of a fixed choice of validation sentences.

    A separate model translates them, in float32 whatever the dtype of training, so the decoder engine applies. chrF
    scores texts that are too short for BLEU: `note` then says why it is not the requested score.
    """

    def __init__(self, run: RunFolder, task: Task) -> None:
        load_sacrebleu(run.options.validate_with)
        self._run, self._task, self._model = run, task, make_model(run)
        pairs = task.validation_texts()
        # Evenly spaced, because the pairs may be sorted by length.
        count = min(run.options.validate_sentences, len(pairs))
        chosen = [pairs[i * len(pairs) // count] for i in range(count)]
        self._sources = [ids for ids, _ in chosen]
        self._references = [text for _, text in chosen]
        metrics = choose_metrics(self._references, run.options.bleu_tokenizer)
        wants_bleu = run.options.validate_with == "bleu"
        self.title = "BLEU" if wants_bleu and not metrics.without_bleu else "chrF"
        self.note = ""
        if wants_bleu and metrics.without_bleu:
            self.note = f"{metrics.without_bleu}. Validation uses chrF"
        self.name, self._metric = self.title.lower(), metrics.by_name[self.title]

    def __call__(self, weights: Sequence[Any]) -> float:
        """Return the score of a model with these weights, 0 to 100."""
        assign(self._model.weights, weights, self._run)
        translations: list[str] = []
        for start in range(0, len(self._sources), _BATCH):
            part = self._sources[start : start + _BATCH]
            filled = part + part[:1] * (min(_BATCH, len(self._sources)) - len(part))
            sources = pad_rows(filled, multiple=_MULTIPLE)
            ids = generate(self._model, sources, max_length=self._task.longest_target)
            translations += self._task.decode(np.asarray(ids).tolist()[: len(part)])
        return float(self._metric.corpus_score(translations, [self._references]).score)
