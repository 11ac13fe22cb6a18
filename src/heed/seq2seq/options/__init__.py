"""The options of training, decoding and serving, each declared once."""
