"""Attention with the native kernels, as XLA custom calls on CPUs."""
