"""Registers `Mask` with JAX as a pytree, for arguments of compiled functions and of layers in a functional model."""

from __future__ import annotations

import jax

from heed.ops.mask import Mask
from heed.ops.mask_rules import put_together, take_apart

jax.tree_util.register_pytree_node(
    Mask,
    lambda mask: take_apart(mask.rules),
    lambda outlines, tensors: Mask(put_together(outlines, tensors)),
)
