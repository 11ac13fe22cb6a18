"""Attention in plain PyTorch."""
