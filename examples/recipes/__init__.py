"""Where tutorials say to go next: scripts that train, are measured beside a baseline, and draw their attention."""
