"""Attention over a sequence split across the workers of a `tf.distribute` strategy."""
