"""Translating with trained runs, and the attention behind a translation."""
