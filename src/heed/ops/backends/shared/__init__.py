"""Parts that backends share: one block of attention in `keras.ops`, and the C interface of the native core."""
