"""heed: exact attention for Keras 3 on TensorFlow, PyTorch and JAX, in linear memory.

`import heed` is free: its parts, and with them Keras and its backend, load on first use.

- `heed.ops`: pure functions on tensors (`dot_product_attention`, `additive_attention`, `Mask`).
- `heed.layers`: Keras layers over the ops (`MultiHeadAttention`, `AdditiveAttention`, blocks).
- `heed.models`: Transformer encoder, decoder and encoder-decoder, and decoding with a cache.
- `heed.seq2seq`: tasks and training of sequence-to-sequence models.
- `heed.distributed`: attention over a sequence split across workers.
- `heed.export`: exports models to SavedModel, LiteRT, ONNX and CTranslate2.
- `heed.inspect`: what each head attends to, as numbers and pictures.
- `heed.accelerate()`: runs Keras and KerasHub models on heed's ops.

Example:
    >>> import heed
    >>> print(heed.Mask.causal().draw(3, 3))
    ■ · ·
    ■ ■ ·
    ■ ■ ■
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from heed._loading import register_on_demand

if TYPE_CHECKING:
    from heed import distributed, export, inspect, layers, models, ops, seq2seq
    from heed.acceleration import accelerate, decelerate
    from heed.environment import info
    from heed.ops import Mask, explain_dispatch, set_implementation

__version__ = "0.1.0"

__all__ = [
    "Mask",
    "__version__",
    "accelerate",
    "decelerate",
    "distributed",
    "explain_dispatch",
    "export",
    "info",
    "inspect",
    "layers",
    "models",
    "ops",
    "seq2seq",
    "set_implementation",
]

# Loaded on first use: parts, and names with their modules.
_PARTS = ("distributed", "export", "inspect", "layers", "models", "ops", "seq2seq")
_LAZY = {
    "Mask": "heed.ops",
    "accelerate": "heed.acceleration",
    "decelerate": "heed.acceleration",
    "explain_dispatch": "heed.ops",
    "info": "heed.environment",
    "set_implementation": "heed.ops",
}


def __getattr__(name: str) -> Any:
    """Import a part of heed on first use (PEP 562)."""
    if name in _PARTS:
        if name == "layers":  # which loads no backend itself
            importlib.import_module("heed.ops")  # says what is missing
        return importlib.import_module(f"heed.{name}")  # which sets the attribute
    if name not in _LAZY:
        places = [f"`heed.{part}.{name}`" for part in _PARTS if name in _public_names(part)]
        where = f": it is {' or '.join(places)}" if places else ""
        raise AttributeError(f"module 'heed' has no attribute {name!r}{where}", name=name)
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value  # the next access does not come here again
    return value


@functools.cache
def _public_names(part: str) -> list[str]:
    """Return the names in a part's `__all__`, read from its source: importing it would load TensorFlow."""
    import ast
    import pkgutil

    source = pkgutil.get_data(__name__, f"{part}/__init__.py") or b""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)


register_on_demand()
