"""A smoke test of an installed heed: forward, gradient and fit, all by the native kernels."""

import sys

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import heed

info = heed.info()
print({name: info[name] for name in ("heed", "python", "keras", "tensorflow", "instruction_set")})


def check(holds: bool, what: str) -> None:
    """Exits with an error unless the condition holds."""
    if not holds:
        sys.exit(f"wrong: {what}; {info}")


check("site-packages" in heed.__file__, f"heed is not the installed one but {heed.__file__}")
check(info["implementation"] == "native", "the native kernels are not in use")

rng = np.random.default_rng(0)
query, key, value = (rng.normal(size=(2, 70, 4, 16)).astype("float32") for _ in range(3))
scores = np.einsum("btnh,bsnh->bnts", query, key) / 4
scores = np.where(np.tri(70, dtype=bool), scores, -np.inf)
weights = np.exp(scores - scores.max(-1, keepdims=True))
weights /= weights.sum(-1, keepdims=True)
tensors = [tf.constant(x) for x in (query, key, value)]
with tf.GradientTape() as tape:
    tape.watch(tensors)
    output = heed.ops.dot_product_attention(*tensors, is_causal=True)
check(np.abs(output - np.einsum("bnts,bsnh->btnh", weights, value)).max() < 1e-5, "forward")
gradients = tape.gradient(output, tensors)
expected = np.einsum("bnts->bsn", weights)[..., None]
check(np.abs(gradients[2] - expected).max() < 1e-4, "gradient of the values")
with heed.set_implementation("portable"), tf.GradientTape() as tape:
    tape.watch(tensors)
    other = heed.ops.dot_product_attention(*tensors, is_causal=True)
for one, another in zip(gradients, tape.gradient(other, tensors), strict=True):
    check(np.abs(one - another).max() < 1e-4, "gradients differ from the portable form's")

eager = context.context()
before = set(eager.list_function_names())
inputs = keras.Input((None, 16))
hidden = heed.layers.TransformerEncoderLayer(2, 32)(inputs)
model = keras.Model(inputs, heed.layers.AdditiveAttention(8)(hidden, hidden))
model.compile("adam", "mse")
x = rng.normal(size=(32, 12, 16)).astype("float32")
losses = model.fit(x, x, epochs=4, verbose=0).history["loss"]
check(losses[-1] < losses[0], f"fit does not lower the loss: {losses}")
ops = {
    node.op
    for name in set(eager.list_function_names()) - before
    for node in eager.get_function_def(name).node_def
}
wanted = {
    f"Heed{name}{suffix}" for name in ("Attention", "Additive") for suffix in ("", "Gradient")
}
check(wanted <= ops, "fit did not run the native kernels")
print("forward, gradient and fit are right, by the native kernels")
