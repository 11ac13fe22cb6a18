"""Next steps after the tutorials: scripts that train a model, compare it with a baseline, and plot its attention."""
