"""The same translator three times over: of heed's layers, of stock Keras layers and of torch's.

Each module has a function `translate(run, rows)`: it trains the model of a heed run anew, on the batches and with the
rates that heed takes, and translates rows of source ids, the likeliest token in each step.
"""

TRANSLATORS = {
    "heed": "benchmarks.translators.heed_layers",
    "keras": "benchmarks.translators.keras_layers",
    "torch": "benchmarks.translators.torch_modules",
}
