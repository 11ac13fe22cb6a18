"""A smoke test of an installed heed: forward, gradient, fit and the demo, all by the native kernels."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import heed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--portable", action="store_true", help="the wheel has no native kernels")
parser.add_argument("--without-compiler", action="store_true", help="fail if PATH has one")
parser.add_argument(
    "--steps", help="train the demo for so many steps only, and accept wrong answers"
)
arguments = parser.parse_args()
implementation = "portable" if arguments.portable else "native"

info = heed.info()
print({name: info[name] for name in ("heed", "python", "keras", "tensorflow", "instruction_set")})


def check(holds: bool, what: str) -> None:
    """Exit with an error unless the condition holds."""
    if not holds:
        sys.exit(f"wrong: {what}; {info}")


check("site-packages" in heed.__file__, f"heed is not the installed one but {heed.__file__}")
check(info["implementation"] == implementation, f"the implementation is not {implementation}")
if arguments.without_compiler:
    compilers = [name for name in "cc c++ gcc g++ clang clang++".split() if shutil.which(name)]
    check(not compilers, f"PATH has {compilers}")

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
native = {
    f"Heed{name}{suffix}" for name in ("Attention", "Additive") for suffix in ("", "Gradient")
}
check(ops.isdisjoint(native) if arguments.portable else native <= ops, f"fit ran {sorted(ops)}")
print(f"forward, gradient and fit are right, by the {implementation} implementation")


def run(*command: str) -> str:
    """Return the output of a command that succeeds."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    check(done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}")
    print(f"$ {' '.join(command)}\n{done.stdout}", flush=True)
    return done.stdout


said = re.search(r"^implementation +(\w+)$", run("heed", "info"), re.MULTILINE)
check(said is not None and said[1] == implementation, "heed info names another implementation")
with tempfile.TemporaryDirectory() as folder:
    steps = [] if arguments.steps is None else ["--steps", arguments.steps]
    report = run("heed", "demo", "--run", f"{folder}/run", *steps)
right = re.search(r"held-out answers are right to the letter: ([\d.]+) %", report)
check(right is not None, "the demo does not report its answers")
check(bool(steps) or float(right[1]) >= 99, "the demo gives wrong answers")
print("the demo ran")
