"""What is copied beside an artefact, and runs it without heed: `run.py`, and the runtime of its format."""
