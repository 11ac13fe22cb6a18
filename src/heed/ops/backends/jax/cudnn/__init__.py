"""cuDNN's attention through JAX, where its result is heed's."""
