"""Where tutorials say to go next, each a script that trains, is measured beside a baseline, and draws its attention."""
