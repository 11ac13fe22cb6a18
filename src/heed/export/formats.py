"""The registry of formats: `export`, the command line, manifests and tests of the docs read it.

A new format is an entry of `FORMATS`, a module of its name beside this one, which writes it, and one in `runners/`,
which runs it. No framework is imported here: the command line reads this for its help.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heed.export.programs import Program


@dataclasses.dataclass(frozen=True)
class FormatOption:
    """An argument of `export` that only some formats take.

    Attributes:
        name: the argument.
        help: its line in the command line's help.
        type: of its value on the command line and in manifests; None if only Python can pass it.
    """

    name: str
    help: str
    type: Callable[[str], Any] | None = str


@dataclasses.dataclass(frozen=True)
class ExportFormat:
    """A format that models are exported to.

    `heed.export.NAME` writes it: its `write_artefact(job, folder)` takes an `ExportJob` and an empty folder, and
    returns notes for the user. `runners/NAME.py` is copied beside the model as `runtime.py`; it imports nothing of
    heed, and its `load(folder, threads)` returns the programs by name, functions of arrays by name.

    Attributes:
        name: the name in Python, on the command line and in manifests.
        title: the name in docs and messages.
        runs_on: where it runs.
        takes: the models that it can hold.
        precisions: how it can store weights.
        packages: what writing and running it imports beside TensorFlow, all of it in the extra `export`.
        options: the arguments of `export` that it takes beside those of all formats.
    """

    name: str
    title: str
    runs_on: str
    takes: str
    precisions: tuple[str, ...]
    packages: tuple[str, ...] = ()
    options: tuple[FormatOption, ...] = ()

    @property
    def write_artefact(self) -> Callable[[ExportJob, Path], Sequence[str]]:
        """The function that writes the model."""
        return importlib.import_module(f"heed.export.{self.name}").write_artefact

    def takes_option(self, name: str) -> bool:
        """Whether it has an option of this name."""
        return any(option.name == name for option in self.options)


@dataclasses.dataclass(frozen=True)
class ExportJob:
    """A model, and how to write it.

    Attributes:
        model: the model.
        programs: its programs, see `heed.export.programs.programs_of`.
        shipment: the tokens and files of a run, see `heed.seq2seq.shipping.Shipment`; None for other models.
        format: the format.
        precision: how to store weights, one of the format's precisions.
        options: the values of the format's own options, by name.
        longest: the most tokens of a target.
    """

    model: Any
    programs: Sequence[Program]
    shipment: Any
    format: ExportFormat
    precision: str
    options: Mapping[str, Any]
    longest: int


FORMATS = {
    entry.name: entry
    for entry in (
        ExportFormat(
            "saved_model",
            "SavedModel",
            runs_on="TensorFlow 2.16 and newer, TensorFlow Serving",
            takes="every model",
            precisions=("float32",),
            options=(
                FormatOption("implementation", "portable (default), or native, which needs heed"),
            ),
        ),
        ExportFormat(
            "litert",
            "LiteRT",
            runs_on="phones, small computers, browsers",
            takes="every model without loops over lists",
            precisions=("float32", "float16", "int8"),
            packages=("ai_edge_litert",),
            options=(FormatOption("calibration", "samples of the inputs, for int8", type=None),),
        ),
        ExportFormat(
            "onnx",
            "ONNX",
            runs_on="onnxruntime and other runtimes",
            takes="every model without loops over lists",
            precisions=("float32", "float16"),
            packages=("onnx", "onnxruntime"),
            options=(
                FormatOption(
                    "opset", "17 to 24; from 23 (default) on, attention is one node", type=int
                ),
            ),
        ),
        ExportFormat(
            "ctranslate2",
            "CTranslate2",
            runs_on="CTranslate2's C++ and Python servers",
            takes="Transformer and LanguageModel",
            precisions=("float32", "float16", "bfloat16", "int8"),
            packages=("ctranslate2",),
        ),
    )
}
