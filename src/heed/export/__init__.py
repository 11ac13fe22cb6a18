"""Shipping: models leave Python, to SavedModel, LiteRT, ONNX and CTranslate2."""

from heed.export.artefact import read_manifest
from heed.export.exporting import FORMATS, Exported, export

__all__ = ["FORMATS", "Exported", "export", "read_manifest"]
