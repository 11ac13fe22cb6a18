"""What workers of tests do, in a module that loads fast."""


def run_code(code, channel):
    """Run a program with its channel."""
    exec(code, {"channel": channel})
