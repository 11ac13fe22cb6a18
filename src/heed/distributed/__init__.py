"""Training and translating on several processes and machines, on engines that exist.

- `processes`: starts worker processes on this machine, watches them, and stops all when one fails.

Nothing here imports TensorFlow before it is used.
"""
