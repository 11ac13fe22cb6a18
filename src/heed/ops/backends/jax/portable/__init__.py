"""Attention in plain JAX."""
