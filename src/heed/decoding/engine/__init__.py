"""Decoding by the engine: the whole loop as one native op, for the models and options that it supports."""

from heed.decoding.engine.reasons import encoder_reasons, unsupported_reasons
from heed.decoding.engine.run import decode

__all__ = ["decode", "encoder_reasons", "unsupported_reasons"]
