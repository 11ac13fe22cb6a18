"""Runs exported models without heed: `_run.py` and the runtime of the format are copied next to each model."""
