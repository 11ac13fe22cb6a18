"""Everything that knows KerasHub: its attentions, T5's layer, and its `generate`."""
