"""Training and translating on several processes and machines, on engines that exist.

- `processes`: starts worker processes on this machine, watches them, and stops all when one fails.
- `supervisor`: runs a job on worker processes, and starts it again after a fault.
- `cluster`: the workers and their addresses, as TF_CONFIG describes them.
- `meeting`: the workers meet before a job, and compare versions and configs.
- `strategy`: TensorFlow's strategy for a cluster.
- `ray_training`: Ray Train as the launcher.

Nothing here imports TensorFlow or Ray before it is used.
"""
