"""Decoding with any model that offers the methods of `Decodable`; `heed.models` has the public names."""

from heed.decoding.decodable import Decodable
from heed.decoding.generation import explain_generate, generate
from heed.decoding.streaming import stream

__all__ = ["Decodable", "explain_generate", "generate", "stream"]
