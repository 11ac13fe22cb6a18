"""Tokens of the decoder engine as they come, see `native/adapters/tensorflow/token_stream.h`."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_double, c_int32, c_int64
from typing import Any

from heed.ops.backends.shared import core

_MOST = 1024  # tokens read at once


@functools.cache
def _functions() -> Any:
    """The functions of the library that TensorFlow has loaded."""
    library: Any = ctypes.CDLL(str(core.library_path("tf")))
    library.heed_token_stream_open.restype = c_int64
    library.heed_token_stream_read.argtypes = [c_int64, POINTER(c_int32), c_int64, c_double]
    library.heed_token_stream_read.restype = c_int64
    for name in ("heed_token_stream_end", "heed_token_stream_close"):
        function = getattr(library, name)
        function.argtypes, function.restype = [c_int64], None
    return library


class TokenStream:
    """See `heed.ops.backends.decoder.TokenStream`."""

    def __init__(self) -> None:
        self._library = _functions()
        self.number: int = self._library.heed_token_stream_open()
        self._tokens = (c_int32 * _MOST)()

    def read(self, seconds: float) -> list[int] | None:
        """See `heed.ops.backends.decoder.TokenStream`."""
        count = self._library.heed_token_stream_read(self.number, self._tokens, _MOST, seconds)
        return None if count < 0 else self._tokens[:count]

    def end(self) -> None:
        """See `heed.ops.backends.decoder.TokenStream`."""
        self._library.heed_token_stream_end(self.number)

    def close(self) -> None:
        """See `heed.ops.backends.decoder.TokenStream`."""
        self._library.heed_token_stream_close(self.number)
