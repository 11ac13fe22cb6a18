"""Parts that backends share: attention block by block, its weights and statistics, and fused ops, in `keras.ops`."""
