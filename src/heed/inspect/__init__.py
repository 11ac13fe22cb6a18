"""Seeing attention: what each head looks at, as numbers and pictures, without changing a result."""

from heed.inspect._capture import Capture
from heed.inspect._run import capture
from heed.inspect._statistics import RowStatistics

__all__ = ["Capture", "RowStatistics", "capture"]
