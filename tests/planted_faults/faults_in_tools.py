"""Faults in `heed.acceleration`, `heed.inspect` and on the command line."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_ACCELERATION, _INSPECT = "src/heed/acceleration", "src/heed/inspect"
_OF_ACCELERATION, _OF_INSPECT = "tests/acceleration", "tests/inspect"

FAULTS = (
    # Acceleration
    Fault(
        "accelerated layers ignore key_mask",
        f"{_ACCELERATION}/_multi_head.py",
        "Input(key, key_mask, self._key_dense),",
        "Input(key, None, self._key_dense),",
        (f"{_OF_ACCELERATION}/test_accelerate.py", f"{_OF_ACCELERATION}/test_faults.py"),
    ),
    Fault(
        "accelerated layers ignore use_causal_mask",
        f"{_ACCELERATION}/_multi_head.py",
        "        use_causal_mask,\n        _option(",
        "        False,\n        _option(",
        (f"{_OF_ACCELERATION}/test_accelerate.py", f"{_OF_ACCELERATION}/test_faults.py"),
    ),
    Fault(
        "accelerated layers with one head ignore use_causal_mask",
        f"{_ACCELERATION}/_single_head.py",
        "seen = masks.join(_columns(columns), masks.structure(use_causal_mask, None))",
        "seen = _columns(columns)",
        (f"{_OF_ACCELERATION}/test_accelerate.py", f"{_OF_ACCELERATION}/test_faults.py"),
    ),
    Fault(
        "accelerated layers drop in inference",
        f"{_ACCELERATION}/_multi_head.py",
        "dropout=dropping(rate, is_training(training), layer._dropout_layer) if rate else {},",
        "dropout=dropping(rate, True, layer._dropout_layer) if rate else {},",
        (f"{_OF_ACCELERATION}/test_accelerate.py",),
    ),
    Fault(
        "accelerated layers keep what lies in the padding of a separate key",
        "src/heed/layers/attend.py",
        "source if key.tensor is None else masks.hide(key.tensor, columns)",
        "source if key.tensor is None else key.tensor",
        (f"{_OF_ACCELERATION}/test_faults.py", f"{_OF_ACCELERATION}/test_accelerate.py"),
    ),
    Fault(
        "additive layers ignore their learned scale",
        f"{_ACCELERATION}/_single_head.py",
        'return query, key, {"score_vector": ones if scale is None else scale}',
        'return query, key, {"score_vector": ones}',
        (f"{_OF_ACCELERATION}/test_accelerate.py",),
    ),
    Fault(
        "Keras' op ignores its scale",
        f"{_ACCELERATION}/_op.py",
        "scale = number",
        "scale = None",
        (f"{_OF_ACCELERATION}/test_accelerate.py::test_the_op_gives_what_it_gave",),
    ),
    Fault(
        "a patch that was taken out cannot be put in again",
        f"{_ACCELERATION}/_patches.py",
        "self._original = self._replaced_by = None",
        "pass",
        (f"{_OF_ACCELERATION}/test_accelerate.py",),
    ),
    Fault(
        "KerasHub is patched when it loads after everything was put back",
        f"{_ACCELERATION}/_hub.py",
        "if self._hub in sys.meta_path:",
        "if self._hub:",
        (f"{_OF_ACCELERATION}/test_keras_hub.py", f"{_OF_ACCELERATION}/test_accelerate.py"),
    ),
    Fault(
        "T5's layers after the first lose the mask",
        f"{_ACCELERATION}/_t5.py",
        "bias, mask = getattr(position_bias, _NOTE, (position_bias, None))",
        "bias, mask = getattr(position_bias, _NOTE, (position_bias, None))[0], None",
        (f"{_OF_ACCELERATION}/test_keras_hub.py::test_padding_and_rows_without_keys_in_t5",),
    ),
    # Inspect
    Fault(
        "a class token is drawn as if it were a patch",
        f"{_INSPECT}/_plots.py",
        "maps = weights[:, first:].reshape(-1, rows, columns)",
        "maps = weights[:, : rows * columns].reshape(-1, rows, columns)",
        (f"{_OF_INSPECT}/test_plots.py",),
    ),
    Fault(
        "on_token asks layers of fewer keys",
        f"{_INSPECT}/_capture.py",
        "                if token < layer.lengths[1]\n",
        "",
        (f"{_OF_INSPECT}/test_capture_object.py", f"{_OF_INSPECT}/test_capture.py"),
    ),
    Fault(
        "on_offset of an offset that was not captured forgets where queries stand",
        f"{_INSPECT}/_picture.py",
        "places = np.arange(span.start, span.stop) + seen.start.reshape((-1, 1, 1))",
        "places = np.arange(span.start, span.stop) + 0 * seen.start.reshape((-1, 1, 1))",
        (f"{_OF_INSPECT}/test_capture.py::test_a_mask_says_where_queries_stand",),
    ),
    Fault(
        "a pooled picture divides by all queries of a cell",
        f"{_INSPECT}/_picture.py",
        "picture /= np.maximum(attending, 1)[..., None]",
        "picture /= cells[0]",
        (f"{_OF_INSPECT}/test_capture.py",),
    ),
    Fault(
        "the entropy is in bits",
        f"{_INSPECT}/_statistics.py",
        "np.log(logarithms, out=logarithms)",
        "np.log2(logarithms, out=logarithms)",
        (f"{_OF_INSPECT}/test_capture_object.py",),
    ),
    Fault(
        "rollout multiplies in the wrong order",
        f"{_INSPECT}/_measures.py",
        "reached = mixed if reached is None else mixed @ reached",
        "reached = mixed if reached is None else reached @ mixed",
        (f"{_OF_INSPECT}/test_measures.py",),
    ),
    Fault(
        "by_head counts queries that attend to nothing",
        f"{_INSPECT}/_measures.py",
        "counts = (near[name] > 0) | (far[name] > 0)",
        "counts = (near[name] >= 0) | (far[name] > 0)",
        (f"{_OF_INSPECT}/test_measures.py",),
    ),
    Fault(
        "each state of a recurrent decoder is an attention of its own",
        f"{_INSPECT}/_watch.py",
        "if single and key in self.states:",
        "if False and key in self.states:",
        (f"{_OF_INSPECT}/test_capture.py",),
    ),
    Fault(
        "another head is switched off",
        f"{_INSPECT}/_seen.py",
        "kept = ops.reshape(ops.not_equal(ops.arange(x.shape[axis]), head), shape)",
        "kept = ops.reshape(ops.not_equal(ops.arange(x.shape[axis]), x.shape[axis] - 1 - head), shape)",
        (f"{_OF_INSPECT}/test_interventions.py",),
    ),
    Fault(
        "gradients of grouped heads take the values of other heads",
        f"{_INSPECT}/_seen.py",
        "value = ops.repeat(value, self.sizes[1] // value.shape[1], axis=1)",
        "value = ops.tile(value, (1, self.sizes[1] // value.shape[1], 1, 1))",
        (f"{_OF_INSPECT}/test_interventions.py",),
    ),
    Fault(
        "the page rounds weights instead of their roots",
        f"{_INSPECT}/drawing.py",
        "np.rint(np.sqrt(picture) * levels).astype(np.uint8)",
        "np.rint(picture * levels).astype(np.uint8)",
        (f"{_OF_INSPECT}/test_page.py",),
    ),
    Fault(
        "text on a page is not escaped",
        f"{_INSPECT}/drawing.py",
        r'for sign in "<>&\u2028\u2029":',
        'for sign in "&":',
        (f"{_OF_INSPECT}/test_page.py",),
    ),
    # The command line
    Fault(
        "the command line does not come before the file",
        "src/heed/cli/train.py",
        "        if getattr(parsed, name) is None:\n",
        "        if True:\n",
        ("tests/test_cli_training.py",),
    ),
    Fault(
        "--resume takes options and ignores them",
        "src/heed/cli/train.py",
        'others = [name for name in given(parsed, names) if name != "steps"]',
        "others: list[str] = []",
        ("tests/test_cli.py",),
    ),
    Fault(
        "text after an option is lost",
        "src/heed/cli/__init__.py",
        "parsed.text += others",
        "parsed.text += others[1:]",
        ("tests/test_cli.py",),
    ),
)
