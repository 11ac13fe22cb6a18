"""Faults in `heed.export` and in the exportable implementation of attention."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_EXPORT, _OF_EXPORT = "src/heed/export", "tests/export"
_EXPORTABLE = "src/heed/ops/backends/tensorflow/exportable.py"
_OF_EXPORTABLE = "tests/ops/test_exportable.py"

FAULTS = (
    # Attention as one expression
    Fault(
        "exportable attention gives an empty row the mean of all values",
        _EXPORTABLE,
        "return weights * tf.cast(visible, scores.dtype)",
        "return weights",
        (_OF_EXPORTABLE,),
    ),
    Fault(
        "exportable attention shows the keys that a bias of -1e30 hides",
        _EXPORTABLE,
        "seen = bias > HIDING_BIAS",
        "seen = bias >= HIDING_BIAS",
        (_OF_EXPORTABLE,),
    ),
    Fault(
        "the exportable log-sum-exp of an empty row is finite",
        _EXPORTABLE,
        "* tf.cast(visible, scores.dtype), axis=-1)",
        ", axis=-1)",
        (_OF_EXPORTABLE,),
    ),
    # Plain loops and operations
    Fault(
        "exported recurrent layers change their states at padding",
        f"{_EXPORT}/recurrence.py",
        "new_states = _where(now, new_states, states)",
        "pass",
        (f"{_OF_EXPORT}/test_recurrence.py",),
    ),
    Fault(
        "exported recurrent layers read every sequence forwards",
        f"{_EXPORT}/recurrence.py",
        "return tf.reverse(x, [0]) if go_backwards else x",
        "return x",
        (f"{_OF_EXPORT}/test_recurrence.py",),
    ),
    Fault(
        "what is patched while exporting is patched for other threads too",
        "src/heed/_patching.py",
        "(replacement if self._active.get() else original)",
        "replacement",
        (f"{_OF_EXPORT}/test_recurrence.py",),
    ),
    Fault(
        "an exported x[..., None] has its new axis in the wrong place",
        f"{_EXPORT}/plain_operations.py",
        "axis += x.shape.rank - given",
        "axis += 1",
        (f"{_OF_EXPORT}/test_plain_operations.py",),
    ),
    # Folders
    Fault(
        "the check of an export does not find a folder at a relative path",
        f"{_EXPORT}/verify.py",
        'folder.resolve() / "run.py"',
        'folder / "run.py"',
        (f"{_OF_EXPORT}/test_exporting.py::test_an_artefact_is_run_from_another_folder",),
    ),
    Fault(
        "samples with tokens below 0 are accepted",
        f"{_EXPORT}/samples.py",
        "(ids >= 0) & (ids < size)",
        "(ids < size)",
        (f"{_OF_EXPORT}/test_exporting.py::test_tokens_outside_the_vocabulary_are_refused",),
    ),
    # Formats
    Fault(
        "an option of another format is ignored",
        f"{_EXPORT}/exporting.py",
        "if used[name] and not kind.takes_option(name):",
        "if False:",
        (f"{_OF_EXPORT}/test_exporting.py::test_options_that_do_not_fit_are_refused",),
    ),
    Fault(
        "a model is exported to CTranslate2 without the options that it does not have",
        f"{_EXPORT}/ctranslate2.py",
        "if field.name not in _FIELDS and value != field.default:",
        "if False:",
        (f"{_OF_EXPORT}/test_ctranslate2.py::test_unsupported_options_are_refused_by_name",),
    ),
    # LiteRT
    Fault(
        "LiteRT's integers with calibration reach into attention",
        f"{_EXPORT}/litert.py",
        "others = [name for name in operators(measured) if name not in _BY_RANGES]",
        "others: list[str] = []",
        (f"{_OF_EXPORT}/test_litert.py::test_precisions",),
    ),
    Fault(
        "TensorFlow's operators in a .tflite are not listed",
        f"{_EXPORT}/litert.py",
        'found.add(f"custom {custom}" if names[number] == "CUSTOM" else names[number])',
        "found.add(names[number])",
        (f"{_OF_EXPORT}/test_litert.py::test_operators_of_tensorflow_are_listed",),
    ),
)
