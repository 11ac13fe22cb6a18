"""`varlen_attn` of PyTorch: sequences side by side, without work for padding, other documents and beyond a window."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from heed.ops.backends import VARLEN
from heed.ops.backends.torch.fused._nonfinite import Pairs, substitute
from heed.ops.backends.torch.fused._protocol import Call, CannotRun, Results
from heed.ops.backends.torch.fused._sequences import Ranges, forget
from heed.ops.spec import AttentionSpec, Tensors

_WIDEST = 256


# PyTorch's function, with the names of its arguments; None where there is none.
try:
    varlen_attn: Any = importlib.import_module("torch.nn.attention.varlen").varlen_attn
except (ImportError, AttributeError):
    varlen_attn = None
ARGUMENTS: Any = () if varlen_attn is None else (*inspect.signature(varlen_attn).parameters,)
_NEEDED = {"scale", "window_size"}


class Varlen(Call):
    """`varlen_attn`. It gives no gradients of the log-sum-exp."""

    name = VARLEN
    gives_lse = False

    def machine_reasons(self) -> list[str]:
        return [] if _NEEDED.issubset(ARGUMENTS) else ["varlen_attn needs PyTorch 2.11"]

    def reasons_against(self, spec: AttentionSpec) -> list[str]:
        width, value_width = spec.widths
        product = spec.score.product
        grouped = spec.heads[0] != spec.heads[1]
        found = {
            "computes in float16 and bfloat16": spec.operand_dtype not in ("float16", "bfloat16"),
            "has no scores but scaled products": product is None or not product.is_plain,
            "has no ALiBi": spec.has_slopes,
            "needs values as wide as keys": width != value_width,
            f"takes widths that are multiples of 8 up to {_WIDEST}": width % 8 > 0
            or width > _WIDEST,
            "does not promise grouped heads in this version of PyTorch": grouped
            and "enable_gqa" not in ARGUMENTS,
            # Its kernel then takes the group for queries, of as many sequences as batch entries.
            "takes no single query with grouped heads": grouped and spec.lengths[0] == 1,
        }
        reasons = [f"varlen_attn {reason}" for reason, holds in found.items() if holds]
        # Last, as a look at segments waits for a GPU.
        if not reasons and Ranges.of(spec) is None:
            reasons = [
                "varlen_attn has no mask but lengths, a window that ends at the last key, or segments each of which is "
                "one run of positions"
            ]
        return reasons

    def assumed(self, spec: AttentionSpec) -> Pairs:
        """Return the segments' numbers now, and as they were when their runs were read."""
        ranges = Ranges.of(spec)
        if ranges is None or ranges.ids is None or ranges.runs is None:
            return ()
        return [(ranges.ids, ranges.runs.ids)]

    def forget(self, spec: AttentionSpec) -> None:
        forget(spec)

    def compute(self, spec: AttentionSpec, tensors: Tensors, repair: bool) -> Results:
        """Return the attention of sequences side by side.

        Raises:
            CannotRun: if segments changed, and one is scattered now.
        """
        ranges = Ranges.of(spec)
        if ranges is None:
            raise CannotRun
        sizes: Any = spec.lengths
        length, keys = sizes
        batch, device = tensors.query.shape[0], tensors.query.device
        layout = ranges.lay_out(batch, length, keys, device)
        operands = (
            tensors[:3] if spec.layout == "BTNH" else [x.transpose(1, 2) for x in tensors[:3]]
        )
        if repair:
            reach = ranges.reach(length, keys, device)
            found, finish = substitute([x.transpose(1, 2) for x in operands], reach)
            operands = [x.transpose(1, 2) for x in found]
        product: Any = spec.score.product
        options: dict[str, Any] = {"scale": product.scale}
        if ranges.band.has_window:
            options["window_size"] = ranges.window
        if spec.heads[0] != spec.heads[1]:
            options["enable_gqa"] = True
        flat = [x.flatten(0, 1) for x in operands]
        output = varlen_attn(*flat, *layout, **options).unflatten(0, (batch, length))
        if repair:
            output = finish(output.transpose(1, 2)).transpose(1, 2)
        return output if spec.layout == "BTNH" else output.transpose(1, 2), None
