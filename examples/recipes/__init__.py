"""Where tutorials say to go next, each as one script that trains, is measured beside a baseline, and draws its attention."""
