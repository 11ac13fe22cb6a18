"""Inspects attention: what each head attends to, as metrics and plots, without changing a result."""

from heed.inspect._attribution import (
    LogitAttribution,
    attribute_logits,
    contrast,
    gradient_times_attention,
    value_norms,
)
from heed.inspect._capture import Capture
from heed.inspect._circuits import CircuitScores, circuit_scores, repeated_tokens
from heed.inspect._edits import Edit, intervene
from heed.inspect._generation import Generation, capture_generation
from heed.inspect._interventions import (
    Ablation,
    HeadCost,
    PatchingEffects,
    ablate,
    patching_effects,
)
from heed.inspect._lens import Lens, logit_lens
from heed.inspect._measures import by_head, head_similarity, rollout
from heed.inspect._page import Page, page
from heed.inspect._plots import (
    plot_alignment,
    plot_cross_attention,
    plot_heads,
    plot_image_attention,
    plot_map,
    plot_model,
)
from heed.inspect._residual import Residual
from heed.inspect._row_statistics import RowStatistics
from heed.inspect._run import capture

__all__ = [
    "Ablation",
    "Capture",
    "CircuitScores",
    "Edit",
    "Generation",
    "HeadCost",
    "Lens",
    "LogitAttribution",
    "Page",
    "PatchingEffects",
    "Residual",
    "RowStatistics",
    "ablate",
    "attribute_logits",
    "by_head",
    "capture",
    "capture_generation",
    "circuit_scores",
    "contrast",
    "gradient_times_attention",
    "head_similarity",
    "intervene",
    "logit_lens",
    "page",
    "patching_effects",
    "plot_alignment",
    "plot_cross_attention",
    "plot_heads",
    "plot_image_attention",
    "plot_map",
    "plot_model",
    "repeated_tokens",
    "rollout",
    "value_norms",
]
