"""Measurements of heed beside its peers: `python -m benchmarks ops`. See docs/benchmarks.md."""
