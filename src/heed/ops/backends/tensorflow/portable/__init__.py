"""Attention in plain TensorFlow."""
