"""Shipping: models leave Python, to SavedModel, LiteRT, ONNX and CTranslate2."""

from heed.export.artefact import read_manifest
from heed.export.errors import ExportError
from heed.export.exporting import FORMATS, Exported, Shippable, export

__all__ = ["FORMATS", "ExportError", "Exported", "Shippable", "export", "read_manifest"]
