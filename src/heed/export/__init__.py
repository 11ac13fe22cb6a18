"""Exports models to SavedModel, LiteRT, ONNX, CTranslate2 and GGUF, and checks the results."""

from typing import TYPE_CHECKING, Any

from heed.export._artefact import read_manifest
from heed.export.errors import ExportError
from heed.export.formats import FORMATS, ExportFormat

if TYPE_CHECKING:
    from heed.export._exporting import Exported, Shippable, export

__all__ = [
    "FORMATS",
    "ExportError",
    "ExportFormat",
    "Exported",
    "Shippable",
    "export",
    "read_manifest",
]


def __getattr__(name: str) -> Any:
    """Import names that need TensorFlow on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from heed.ops.backends import require_tensorflow

    require_tensorflow("`heed.export`")
    from heed.export import _exporting

    return getattr(_exporting, name)
