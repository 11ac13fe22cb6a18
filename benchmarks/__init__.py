"""Measurements of heed beside its peers: `python -m benchmarks bars`. See docs/performance.md."""
