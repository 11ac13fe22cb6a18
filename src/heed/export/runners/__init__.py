"""Runs exported models without heed: `run.py` and the runtime of the format are copied next to each model."""
