"""heed on a Ray cluster; install heed-attention[ray].

- `Translator`: translates a column in a pipeline of Ray Data.
- `deployment`: the HTTP server of `heed serve` as a deployment of Ray Serve.

`heed translate --launch ray` is in `corpus.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heed.lazy import load_on_use

if TYPE_CHECKING:
    from heed.seq2seq.ray._replicas import deployment
    from heed.seq2seq.ray._translator import Translator

__all__ = ["Translator", "deployment"]

__getattr__, __dir__ = load_on_use(
    __name__, {"._replicas": ("deployment",), "._translator": ("Translator",)}
)
