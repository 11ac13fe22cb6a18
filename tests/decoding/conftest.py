"""Decoding is tested op by op, as models are."""

from tests.models.conftest import _op_by_op, compiled

__all__ = ["_op_by_op", "compiled"]
