"""Decoding by the engine: the whole loop as one call of native code, for the models and options that it supports."""

from heed.decoding.engine._reasons import encoder_reasons, machine_reasons, unsupported_reasons
from heed.decoding.engine._run import decode
from heed.decoding.engine._stream import TokenStream

__all__ = ["TokenStream", "decode", "encoder_reasons", "machine_reasons", "unsupported_reasons"]
