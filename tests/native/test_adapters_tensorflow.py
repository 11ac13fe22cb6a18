"""The native ops inside TensorFlow: threads, input pipelines, saved models, forks, strategies, memory.

What needs a process of its own runs as a script, with this repository's root as its folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import heed
from heed import ops
from heed.ops import Mask
from heed.ops.backends.tensorflow.native import library
from heed.ops.core.form import Form, Header, Rule
from tests import reference, tolerances
from tests.graphs import traced
from tests.native import fuzz_ops
from tests.native.programs import run_script

pytestmark = pytest.mark.skipif(
    heed.info()["implementation"] != "native", reason=f"no native kernels: {heed.info()['reason']}"
)
DTYPES = ("float32", "float64", "float16", "bfloat16")
BOTH = {"HeedAttention", "HeedAttentionGradient"}


def tensors(
    seed: int, dtype: str = "float32", length: int = 150, batch: int = 2
) -> list[tf.Tensor]:
    rng = np.random.default_rng(seed)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    shapes = [(batch, length, 4, 16), (batch, length, 2, 16), (batch, length, 2, 24)]
    return [tf.constant(rng.normal(size=shape).astype(kind)) for shape in shapes]


def step(query: Any, key: Any, value: Any) -> list[tf.Tensor]:
    """Return output, log-sum-exp and gradients."""
    inputs = [query, key, value]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        out, lse = ops.dot_product_attention(
            *inputs, is_causal=True, dropout=0.1, seed=1, return_lse=True
        )
    return [out, lse, *tape.gradient(out, inputs)]


def bits(results: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in tf.nest.flatten(results)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_bitwise_the_same_over_100_repeats_and_for_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    inputs = tensors(0, dtype)
    found = set()
    for threads in (1, 2, 5):
        monkeypatch.setattr(library, "threads", lambda threads=threads: threads)
        with traced() as graphs:
            run = tf.function(step)
            found |= {tuple(bits(run(*inputs))) for _ in range(34)}
        assert graphs.native == BOTH
    assert len(found) == 1


def test_workers_of_an_input_pipeline() -> None:
    query, key, value = tensors(0, batch=32)
    data = tf.data.Dataset.from_tensor_slices((query, key, value))

    def attend(*item: tf.Tensor) -> tf.Tensor:
        return ops.dot_product_attention(*(x[None] for x in item), mask=Mask.causal())[0]

    with traced() as graphs:
        data = data.map(attend, num_parallel_calls=4, deterministic=True).batch(32)
    assert graphs.native == {"HeedAttention"}
    expected = ops.dot_product_attention(query, key, value, is_causal=True)
    for _ in range(3):
        (actual,) = data
        assert bits(actual) == bits(expected)


@pytest.mark.parametrize("how", ["map_fn", "vectorized_map", "while_loop", "cond"])
def test_inside_other_constructs(how: str) -> None:
    query, key, value = tensors(0, batch=4)

    def one(item: tuple[tf.Tensor, ...]) -> tf.Tensor:
        return ops.dot_product_attention(*(x[None] for x in item), is_causal=True)[0]

    @tf.function
    def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        if how == "cond":
            return tf.cond(
                tf.reduce_any(query > 0),
                lambda: ops.dot_product_attention(query, key, value, is_causal=True),
                lambda: tf.zeros((4, 150, 4, 24)),
            )
        if how == "while_loop":
            rows = tf.TensorArray(tf.float32, 4)
            rows = tf.while_loop(
                lambda i, rows: i < 4,
                lambda i, rows: (i + 1, rows.write(i, one((query[i], key[i], value[i])))),
                (0, rows),
            )[1]
            return rows.stack()
        if how == "map_fn":
            return tf.map_fn(one, (query, key, value), fn_output_signature=tf.float32)
        return tf.vectorized_map(one, (query, key, value))

    with traced() as graphs:
        actual = run(query, key, value)
    assert graphs.native >= {"HeedAttention"}
    expected = ops.dot_product_attention(query, key, value, is_causal=True)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_shapes_that_are_not_known_while_tracing() -> None:
    signature = [tf.TensorSpec([None, None, n, h]) for n, h in ((4, 16), (2, 16), (2, 24))]
    run = tf.function(step, input_signature=signature)
    with traced() as graphs:
        run.get_concrete_function()
    assert graphs.native == BOTH
    for batch, length in ((2, 150), (1, 1), (3, 64), (0, 5), (2, 0)):
        inputs = tensors(1, length=length, batch=batch)
        assert bits(run(*inputs)) == bits(step(*inputs))
    query, key, value = tensors(1)
    for wrong in ((query, key, value[:, 1:]), (query[1:], key, value)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="must"):
            run(*wrong)


class Saved(tf.Module):
    """A module that a user could save: an attention, and a function that differentiates it."""

    SIGNATURE = tuple(tf.TensorSpec([None, None, n, h]) for n, h in ((4, 16), (2, 16), (2, 24)))

    @tf.function(input_signature=SIGNATURE)
    def __call__(self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        return ops.dot_product_attention(query, key, value, is_causal=True)

    @tf.function(input_signature=SIGNATURE)
    def step(self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> list[tf.Tensor]:
        return step(query, key, value)


READER = """
    import sys
    import numpy as np
    import tensorflow as tf

    try:
        tf.saved_model.load(sys.argv[1])
    except Exception as error:
        assert "Op type not registered 'HeedAttention" in str(error), error
    else:
        raise AssertionError("TensorFlow knows heed's ops without heed")

    import heed.ops
    model = tf.saved_model.load(sys.argv[1])
    data = np.load(sys.argv[2])
    inputs = [tf.constant(data[name]) for name in ("query", "key", "value")]
    for i, x in enumerate(model.step(*inputs)):
        np.testing.assert_array_equal(x, data[f"step{i}"])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        out = model(*inputs)
    for i, x in enumerate([out, *tape.gradient(out, inputs)]):
        np.testing.assert_array_equal(x, data[f"call{i}"])
    print("equal")
"""


@pytest.mark.slow
def test_a_saved_model_in_a_fresh_process(tmp_path: Path) -> None:
    """It needs `import heed.ops`, which registers the ops; without it TensorFlow says what it lacks."""
    inputs = tensors(3)
    model = Saved()
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        out = model(*inputs)
    called = [out, *tape.gradient(out, inputs)]
    arrays = dict(zip(("query", "key", "value"), inputs, strict=True))
    arrays |= {f"step{i}": x for i, x in enumerate(model.step(*inputs))}
    np.savez(tmp_path / "data.npz", **arrays, **{f"call{i}": x for i, x in enumerate(called)})
    tf.saved_model.save(model, str(tmp_path / "model"))
    assert b"HeedAttention" in (tmp_path / "model" / "saved_model.pb").read_bytes()
    assert run_script(READER, tmp_path / "model", tmp_path / "data.npz") == "equal"


FORK = """
    import os, signal, sys
    import numpy as np
    import tensorflow as tf
    from heed import ops

    def run():
        x = tf.constant(np.random.default_rng(0).normal(size=(2, 300, 4, 16)).astype("float32"))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.dot_product_attention(x, x, x, is_causal=True)
        return [y.numpy(), tape.gradient(y, x).numpy()]

    children, expected = [], None
    for _ in range(4):
        child = os.fork()
        if child == 0:
            signal.alarm(120)  # a hang is a failure
            results = run()
            same = expected is None or all((a == b).all() for a, b in zip(results, expected))
            os._exit(0 if same else 1)
        children.append(child)
        expected = run()
    print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.mark.slow  # `test_attention.py` forks by default, without TensorFlow
def test_children_after_fork() -> None:
    """The first is made before the parent's first call, the others after it.

    Eagerly: a child has none of the threads in which TensorFlow runs a tf.function.
    """
    assert run_script(FORK) == "[0, 0, 0, 0]"


FORK_WHILE_WEIGHTS_ARE_PACKED = """
    import os, signal, threading
    import tensorflow as tf
    from heed.decoding.engine.describe import describe_decoder, describe_stack
    from heed.decoding.engine.packed import PackedModel
    from heed.ops.backends import current
    from heed.ops.core.description import Batch, Search, map_tensors
    from tests.models.builders import small_model, sources

    model = small_model(seed=4, target_vocabulary_size=40_000)
    source = tf.constant(sources())
    batch, search = Batch(source, source > 0), Search(8, 0, 1, 2)
    stacks = describe_decoder(model.decoder, "float32"), describe_stack(model.encoder, "float32")
    arrays = map_tensors(stacks, lambda x: x.numpy())

    def decode():
        # Other buffers are another version of the weights: they are packed again.
        current().DECODER_OP.decode(*map_tensors(arrays, tf.constant), batch, search)
        PackedModel(*stacks).version()

    stop = False

    def pack_again_and_again():
        while not stop:
            decode()

    threads = [threading.Thread(target=pack_again_and_again) for _ in range(2)]
    for thread in threads:
        thread.start()
    statuses = []
    for _ in range(10):
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a hang is a failure
            decode()
            os._exit(0)
        statuses.append(os.waitpid(child, 0)[1])
    stop = True
    for thread in threads:
        thread.join()
    print(set(statuses))
"""


@pytest.mark.slow
def test_children_while_weights_are_packed() -> None:
    assert run_script(FORK_WHILE_WEIGHTS_ARE_PACKED) == "{0}"


MEMORY = """
    import gc, re
    import tensorflow as tf
    from heed import ops

    def resident():
        gc.collect()
        text = open("/proc/self/status").read()
        return int(re.search(r"VmRSS:\\s+(\\d+)", text).group(1)) / 1024

    x = tf.random.normal((1, 64, 4, 32))  # 32 KiB, as large as each result

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.dot_product_attention(x, x, x, is_causal=True)
        return tape.gradient(y, x)

    traced = tf.function(step)

    def calls(count):
        for _ in range(count):
            step(x)
            traced(x)
            try:
                ops.dot_product_attention(x, x, x, mask=tf.ones((1, 1, 63, 64), tf.bool))
            except ValueError:
                pass

    calls(100)
    before = resident()
    calls(1000)
    print(resident() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow() -> None:
    """A result that was never released would cost 1000 times 32 KiB = 32 MiB, for each kind of call."""
    assert float(run_script(MEMORY)) < 16


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_not_numbers_or_denormal(dtype: str) -> None:
    """NaN and Inf stay with the queries that may see them; float16's denormals count."""
    query, key, value = (x.numpy().copy() for x in tensors(5, dtype, length=100))
    hidden, seen = 90, 40
    for x in (key, value):
        x[0, hidden, 0] = np.nan
        x[1, hidden, 1, 3] = np.inf
    value[0, seen] = np.nan
    value[1] *= 2.0**-22 if dtype == "float16" else 1
    mask = np.ones((2, 1, 100, 100), bool)
    mask[..., hidden] = False
    mask[:, :, 50:, seen] = False
    arguments = (query, key, value)
    out = np.asarray(ops.dot_product_attention(*arguments, mask=mask)).astype(np.float64)
    with np.errstate(invalid="ignore"):
        expected = reference.dot_product_attention(*arguments, mask=mask).out
    assert np.isnan(out[0, :50]).all()
    assert np.isfinite(out[0, 50:]).all()
    tolerances.assert_values(out[0, 50:], expected[0, 50:], dtype)
    steps = 2.0**-24 if dtype == "float16" else tolerances.VALUES[dtype].atol
    np.testing.assert_allclose(out[1], expected[1], rtol=2e-2, atol=2 * steps)


@pytest.mark.parametrize("heads_first", [False, True])
def test_the_ops_take_dilation(heads_first: bool) -> None:
    query, key, value = (np.array(x) for x in tensors(1))
    axes = (0, 2, 1, 3) if heads_first else (0, 1, 2, 3)
    align = np.array([-7, 5], np.int32)
    header = Header(0, int(heads_first), 0, -1, -1, -1, -1, rules=1)
    form = Form((0, 0.25, 0), header, (Rule(5, 3, 0, 0, 0, 0, -1, -1, -1),))
    output, lse, _ = library.ops().heed_attention(
        *(x.transpose(axes) for x in (query, key, value)), operands=[align], form=form.pack()
    )
    i, j = np.arange(150)[:, None], np.arange(150)
    mask = (i + align[:, None, None, None] - j) % 3 == 0
    wanted = reference.dot_product_attention(query, key, value, mask=mask, scale=0.25)
    tolerances.assert_values(output.numpy().transpose(axes), wanted.out, "float32")
    tolerances.assert_statistics(lse, wanted.lse, "float32")


def test_malformed_ops_end_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """If one ends the process, `python -m tests.native.fuzz_ops 0 60` says which."""
    fuzz_ops.main("0", "60")
    right = int(capsys.readouterr().out.splitlines()[-1].split()[0])
    assert 7 < right < 53  # some are right, some are not
