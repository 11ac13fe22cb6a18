"""The native kernels on tensors of PyTorch."""
