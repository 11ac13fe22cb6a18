"""The native kernels as ops of TensorFlow."""
