"""The same translator made of heed's layers, of stock Keras layers and of torch's.

Each module has a function `translate(run, rows)`, which trains the model of a heed run on heed's batches with heed's
learning rates, and translates rows of source ids greedily.
"""

TRANSLATORS = {
    "heed": "benchmarks.translators.heed_layers",
    "keras": "benchmarks.translators.keras_layers",
    "torch": "benchmarks.translators.torch_modules",
}
