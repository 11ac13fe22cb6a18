"""Inspects attention: what each head attends to, as metrics and plots, without changing a result."""

from heed.inspect._attribution import gradient_times_attention
from heed.inspect._capture import Capture
from heed.inspect._edits import Edit, intervene
from heed.inspect._generation import Generation, capture_generation
from heed.inspect._interventions import (
    Ablation,
    HeadCost,
    PatchingEffects,
    ablate,
    patching_effects,
)
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
from heed.inspect._run import capture
from heed.inspect._statistics import RowStatistics

__all__ = [
    "Ablation",
    "Capture",
    "Edit",
    "Generation",
    "HeadCost",
    "Page",
    "PatchingEffects",
    "Residual",
    "RowStatistics",
    "ablate",
    "by_head",
    "capture",
    "capture_generation",
    "gradient_times_attention",
    "head_similarity",
    "intervene",
    "page",
    "patching_effects",
    "plot_alignment",
    "plot_cross_attention",
    "plot_heads",
    "plot_image_attention",
    "plot_map",
    "plot_model",
    "rollout",
]
