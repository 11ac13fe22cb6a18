"""The registry of formats: `export`, the command line, manifests and tests of the docs read it.

A new format is an entry of `FORMATS`, a folder of its name in this one, which writes it, and one in `runners/`,
which runs it. No framework is imported here: the command line reads this for its help.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heed.export.errors import ExportError, ExportOptionError
from heed.install import how_to_install
from heed.suggestions import nearest

if TYPE_CHECKING:
    from heed.export.programs import Program


class FormatOption(NamedTuple):
    """An argument of `export` that only some formats take."""

    name: str
    help: str  # for the command line
    type: Any = str  # of its value on the command line; None if only Python can pass it
    default: Any = None  # its value where the caller gives none


@dataclasses.dataclass(frozen=True)
class ExportFormat:
    """A format that models are exported to.

    `heed.export.NAME` writes it: its `write_artefact(job, folder)` takes an `ExportJob` and an empty folder, and
    returns notes for the user. `runners/_NAME.py` is copied next to the model as `runtime.py`; it imports nothing of
    heed, and its `load(folder, threads)` returns the programs by name, functions of arrays by name.

    Attributes:
        name: the name in Python, on the command line and in manifests.
        title: the name in docs and messages.
        takes: the models that it can hold.
        runs_on: where it runs.
        precisions: how it can store weights.
        packages: the packages, besides TensorFlow, that write it, and run it unless `runtime` does.
        options: the arguments of `export` that only this format takes, or only some formats.
        extra: the extra of heed with these packages.
        runtime: a package that runs it, without which the model is not compared; its name on the package index.
        computes_in: the coarsest precision of the runtime's own numbers, whatever that of the weights.
    """

    name: str
    title: str
    takes: str
    runs_on: str
    precisions: tuple[str, ...]
    packages: tuple[str, ...] = ()
    options: tuple[FormatOption, ...] = ()
    extra: str = "export"
    runtime: str | None = None
    computes_in: str = "float32"

    @property
    def programs_of(self) -> Callable[..., list[Program]]:
        """The function that describes a model by programs: the module's own, or that of other formats."""
        module = importlib.import_module(f"heed.export.{self.name}")
        if not hasattr(module, "programs_of"):
            module = importlib.import_module("heed.export.programs")
        return module.programs_of

    @property
    def write_artefact(self) -> Callable[[ExportJob, Path], Sequence[str]]:
        """The function that writes the model."""
        return importlib.import_module(f"heed.export.{self.name}").write_artefact

    def takes_option(self, name: str) -> bool:
        """Return whether it has an option of this name."""
        return any(option.name == name for option in self.options)

    def check_precision(self, precision: str, argument: str = "precision") -> None:
        """Raise an `ExportOptionError` unless weights can be stored so."""
        check_name(f"`{argument}` of {self.name}", precision, self.precisions)

    def import_package(self, package: str) -> Any:
        """Return one of its packages, or raise an `ExportError` that says how to install it."""
        try:
            return importlib.import_module(package)
        except ImportError:
            command = how_to_install(self.extra)
            raise ExportError(f"{self.name} needs {package}: {command}") from None


class ExportJob(NamedTuple):
    """A model, and how to write it."""

    model: Any
    programs: Sequence[Program]
    shipment: Any  # a run's `heed.seq2seq.runs.shipping.Shipment`, None for other models
    format: ExportFormat
    precision: str
    options: Mapping[str, Any]  # the values of the format's own options
    longest: int  # the most tokens of a target


def check_name(what: str, name: Any, known: Collection[str]) -> None:
    """Raise an `ExportOptionError` unless the name is a known one."""
    if not isinstance(name, str) or name not in known:
        like = nearest(str(name), known)
        raise ExportOptionError(
            f"{what} must be one of {', '.join(known)}. Received: {name!r}{like}"
        )


_LOOPLESS = "every model without loops over lists"
FORMATS = {
    entry.name: entry
    for entry in (
        ExportFormat(
            "saved_model",
            "SavedModel",
            "every model",
            "TensorFlow 2.16 and newer, TensorFlow Serving",
            ("float32",),
            options=(
                FormatOption(
                    "implementation",
                    "portable (default), or native, which needs heed",
                    default="portable",
                ),
            ),
        ),
        ExportFormat(
            "litert",
            "LiteRT",
            _LOOPLESS,
            "phones, small computers, browsers",
            ("float32", "float16", "int8"),
            ("ai_edge_litert",),
            (FormatOption("calibration", "samples of the inputs, for int8", None),),
        ),
        ExportFormat(
            "onnx",
            "ONNX",
            _LOOPLESS,
            "onnxruntime and other runtimes",
            ("float32", "float16"),
            ("onnx", "onnxruntime"),
            (
                FormatOption(
                    "opset", "17 to 24; from 23 (default) on, attention is one node", int, 23
                ),
            ),
        ),
        ExportFormat(
            "ctranslate2",
            "CTranslate2",
            "Transformer and LanguageModel",
            "CTranslate2's C++ and Python servers",
            ("float32", "float16", "bfloat16", "int8"),
            ("ctranslate2",),
        ),
        ExportFormat(
            "gguf",
            "GGUF",
            "LanguageModel and KerasHub's Llama, Mistral, Gemma, Qwen",
            "llama.cpp, and programs that are built on it",
            ("float32", "bfloat16", "q8_0", "q4_0"),
            ("gguf",),
            (FormatOption("context", "the most tokens of a text, 8192 by default", int),),
            extra="gguf",
            runtime="llama-cpp-python",
            computes_in="float16",  # its table of GELU
        ),
    )
}
