"""PyTorch's own fused attention, where its result is heed's."""
