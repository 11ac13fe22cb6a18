"""Faults above layers and models: acceleration, inspection, export, seq2seq, workers."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_ACCELERATION, _INSPECT = "src/heed/acceleration", "src/heed/inspect"
_OF_ACCELERATION, _OF_INSPECT = "tests/acceleration", "tests/inspect"
_SEQ2SEQ, _OF_SEQ2SEQ = "src/heed/seq2seq", "tests/seq2seq"
_EXPORT, _OF_EXPORT = "src/heed/export", "tests/export"
_EXPORTABLE = "src/heed/ops/backends/tensorflow/exportable.py"
_OF_EXPORTABLE = "tests/ops/test_backends_exportable.py"
_OF_DISTRIBUTED = "tests/distributed"

FAULTS = (
    Fault(
        "accelerated layers ignore key_mask",
        f"{_ACCELERATION}/_multi_head.py",
        "(query, value, key), (query_mask, value_mask, key_mask))",
        "(query, value, key), (query_mask, value_mask, None))",
        (f"{_OF_ACCELERATION}/test_switch.py", f"{_OF_ACCELERATION}/test_faults.py"),
    ),
    Fault(
        "accelerated layers ignore use_causal_mask",
        f"{_ACCELERATION}/_multi_head.py",
        "masks.structure(use_causal_mask, option(",
        "masks.structure(False, option(",
        (f"{_OF_ACCELERATION}/test_switch.py", f"{_OF_ACCELERATION}/test_faults.py"),
    ),
    Fault(
        "Keras' op ignores its scale",
        f"{_ACCELERATION}/op.py",
        "scale = number",
        "scale = None",
        (f"{_OF_ACCELERATION}/test_switch.py::test_the_op_has_the_same_output",),
    ),
    Fault(
        "rollout multiplies in the wrong order",
        f"{_INSPECT}/_measures.py",
        "reached = mixed if reached is None else mixed @ reached",
        "reached = mixed if reached is None else reached @ mixed",
        (f"{_OF_INSPECT}/test_measures.py",),
    ),
    Fault(
        "gradients of grouped heads take the values of other heads",
        f"{_INSPECT}/_observed.py",
        "return ops.repeat(value, self.sizes[1] // value.shape[1], axis=1)",
        "return ops.tile(value, (1, self.sizes[1] // value.shape[1], 1, 1))",
        (f"{_OF_INSPECT}/test_interventions.py",),
    ),
    Fault(
        "an attribution forgets that a normalisation subtracts the mean",
        f"{_INSPECT}/_attribution.py",
        "return self._centre(self._factor * self._scale * g)",
        "return self._factor * self._scale * g",
        (f"{_OF_INSPECT}/test_attribution.py",),
    ),
    Fault(
        "an induction head looks at the same token, not behind it",
        f"{_INSPECT}/_circuits.py",
        "after[:, :, 1:] = same[:, :, :-1]",
        "after[:] = same",
        (f"{_OF_INSPECT}/test_attribution.py",),
    ),
    Fault(
        "exportable attention gives an empty row the mean of all values",
        _EXPORTABLE,
        "return weights * tf.cast(visible, scores.dtype)",
        "return weights",
        (_OF_EXPORTABLE,),
    ),
    Fault(
        "exported recurrent layers change their states at padding",
        f"{_EXPORT}/_recurrence.py",
        "new_states = _where(now, new_states, states)",
        "pass",
        (f"{_OF_EXPORT}/test_recurrence.py",),
    ),
    Fault(
        "the loss counts padding",
        f"{_SEQ2SEQ}/training/_step.py",
        "logits, target, label_smoothing=smoothing, ignore_class=pad_id",
        "logits, target, label_smoothing=smoothing",
        (f"{_OF_SEQ2SEQ}/training/test_step.py",),
    ),
    Fault(
        "an accumulated step is the mean of its first batch's tokens",
        f"{_SEQ2SEQ}/training/_step.py",
        "(one.target != self.model.config.pad_id).sum()) for one in batches)",
        "(one.target != self.model.config.pad_id).sum()) for one in batches[:1])",
        (f"{_OF_SEQ2SEQ}/training/test_step.py",),
    ),
    Fault(
        "held-out sentences are trained on",
        f"{_SEQ2SEQ}/tasks/text_task.py",
        "chosen = first + np.flatnonzero(candidates != block)",
        "chosen = first + np.arange(len(sources))",
        (f"{_OF_SEQ2SEQ}/tasks/test_text_task.py",),
    ),
    Fault(
        "a word is aligned by where the model looked one step later",
        f"{_SEQ2SEQ}/translating/alignment.py",
        "pad_rows([[START_ID, *target] for target in targets])",
        "pad_rows([[*target, PAD_ID] for target in targets])",
        (f"{_OF_SEQ2SEQ}/translating/test_alignment.py",),
    ),
    Fault(
        "the first checkpoints are averaged",
        f"{_SEQ2SEQ}/runs/averaging.py",
        "for path in paths[-last:]]",
        "for path in paths[:last]]",
        (
            f"{_OF_SEQ2SEQ}/training/test_training_features.py::test_the_mean_of_the_last_moving_averages",
        ),
    ),
    Fault(
        "perplexity counts padding",
        f"{_SEQ2SEQ}/translating/translator.py",
        "own[expected != PAD_ID].sum(dtype=np.float64)",
        "own.sum(dtype=np.float64)",
        (f"{_OF_SEQ2SEQ}/translating/test_translator.py",),
    ),
    Fault(
        "the references are scored against the translations",
        f"{_SEQ2SEQ}/text/scoring.py",
        "metric.corpus_score(translations, [references])",
        "metric.corpus_score(references, [translations])",
        (f"{_OF_SEQ2SEQ}/text/test_scoring.py",),
    ),
    Fault(
        "pieces of a message are joined in another order",
        "src/heed/ops/backends/tensorflow/ring/workers.py",
        "tf.concat(pieces, 0)",
        "tf.concat(pieces[::-1], 0)",
        (f"{_OF_DISTRIBUTED}/test_ring_attention.py",),
    ),
)
