"""Positions and biases: sinusoidal, rotary, ALiBi slopes, T5 relative bias."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest

from heed import ops
from heed.ops import rotary_scaling
from tests.backend import on_tensorflow, tf, vjp
from tests.ops.harness import small_blocks
from tests.strategies import Shape

# --- sinusoidal ---------------------------------------------------------------------------------


def test_sinusoidal_positions_as_the_paper_writes_them() -> None:
    table = np.asarray(ops.sinusoidal_positions(keras.ops.arange(20), 8))
    assert table.shape == (20, 8)
    assert table.dtype == np.float32
    for position in range(20):
        for i in range(4):
            angle = position / 10000.0 ** (2 * i / 8)
            assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 5, 8])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_sinusoidal_positions_of_any_shape(shape: tuple[int, ...], dim: int) -> None:
    positions = np.random.default_rng(0).integers(0, 100, size=shape)
    table = np.asarray(ops.sinusoidal_positions(positions, dim))
    assert table.shape == (*shape, dim)
    whole = np.asarray(ops.sinusoidal_positions(np.arange(100), dim))
    np.testing.assert_allclose(table, whole[positions], atol=1e-6)


def test_sinusoidal_positions_stay_exact_far_out() -> None:
    """The fastest wave of position 100,000 is right to three digits."""
    table = np.asarray(ops.sinusoidal_positions([100_000], 4, max_wavelength=100.0))
    expected = [math.sin(1e5), math.cos(1e5), math.sin(1e4), math.cos(1e4)]
    np.testing.assert_allclose(table[0], expected, atol=5e-3)


# --- rotary -------------------------------------------------------------------------------------


def rotate(
    x: np.ndarray, positions: Any, interleaved: bool, pairs: list[tuple[float, float]]
) -> np.ndarray:
    """Return RoPE as complex numbers, unlike the op: the radians per position of each pair, and its factor."""
    positions = np.broadcast_to(positions, x.shape[:2])
    result = np.zeros_like(x)
    for c, (radians, factor) in enumerate(pairs):
        first, second = (2 * c, 2 * c + 1) if interleaved else (c, c + len(pairs))
        turns = np.exp(1j * positions * radians)[..., None]
        pair = factor * (x[..., first] + 1j * x[..., second]) * turns
        result[..., first], result[..., second] = pair.real, pair.imag
    return result


def plain(H: int, wavelength: float = 10000.0) -> list[tuple[float, float]]:
    return [(wavelength ** (-2 * c / H), 1.0) for c in range(H // 2)]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("positions", [None, [3, 4, 9, 100, 0], "per item"])
def test_rotary_embedding_turns_pairs(interleaved: bool, positions: object) -> None:
    x = Shape(B=2, T=5, N=3, K=3, H=6).inputs(0)[0]
    if positions == "per item":
        positions = np.random.default_rng(0).integers(0, 50, size=(2, 5))
    where = np.arange(5) if positions is None else np.asarray(positions)
    turned = ops.rotary_embedding(x, positions, interleaved=interleaved)
    assert keras.backend.standardize_dtype(turned.dtype) == "float64"
    np.testing.assert_allclose(turned, rotate(x, where, interleaved, plain(6)), atol=1e-12)
    swapped = ops.rotary_embedding(
        np.swapaxes(x, 1, 2), positions, interleaved=interleaved, layout="BNTH"
    )
    np.testing.assert_allclose(np.swapaxes(np.asarray(swapped), 1, 2), turned, atol=1e-6)


def test_rotary_wavelength_and_scaling() -> None:
    x = Shape(B=1, T=4, N=1, K=1, H=4).inputs(0)[0]
    turned = ops.rotary_embedding(x, max_wavelength=500.0)
    expected = rotate(x, np.arange(4), False, plain(4, 500.0))
    np.testing.assert_allclose(turned, expected, atol=1e-12)
    scaled = ops.rotary_embedding(x, scaling_factor=4.0)
    expected = rotate(x, np.arange(4) / 4.0, False, plain(4))
    np.testing.assert_allclose(scaled, expected, atol=1e-12)


def test_rotary_embedding_has_a_gradient() -> None:
    x = keras.ops.convert_to_tensor(Shape(B=1, T=3, N=2, K=2, H=4).inputs(0)[0])
    y, pull = vjp(ops.rotary_embedding, x)
    # A rotation keeps lengths, so the gradient of |y|^2 / 2 is x itself.
    np.testing.assert_allclose(pull(y)[0], x, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rotary_embedding_keeps_the_dtype(dtype: str) -> None:
    x = Shape(B=1, T=3).inputs(0, dtype)[0]
    assert keras.backend.standardize_dtype(ops.rotary_embedding(x).dtype) == dtype


SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear", "factor": 3.0},
    "ntk": {"kind": "ntk", "factor": 4.0},
    "dynamic short": {"kind": "dynamic", "original_length": 6},
    "dynamic": {"kind": "dynamic", "original_length": 2},
    "dynamic times": {"kind": "dynamic", "original_length": 2, "factor": 3.0},
    "llama3": {"kind": "llama3", "original_length": 800},
    "llama3 low": {
        "kind": "llama3",
        "factor": 32.0,
        "original_length": 40,
        "low_frequency_factor": 0.5,
        "high_frequency_factor": 2.0,
    },
    "yarn": {"kind": "yarn", "factor": 4.0, "original_length": 2048},
    "yarn short": {
        "kind": "yarn",
        "factor": 40.0,
        "original_length": 100,
        "beta_fast": 8.0,
        "beta_slow": 0.5,
        "attention_factor": 0.7,
    },
}


def turn(c: int, H: int, base: float, scaling: dict[str, Any], length: int) -> tuple[float, float]:
    """Return the radians per position of pair c, and its factor, written from the papers."""
    kind, s, L = scaling["kind"], scaling.get("factor", 8.0), scaling.get("original_length", 8192)
    w = 1.0 / base ** (2 * c / H)
    wavelength = 2 * math.pi / w
    if kind == "linear":
        return w / s, 1.0
    if kind == "ntk":
        return (base * s ** (H / (H - 2))) ** (-2 * c / H), 1.0
    if kind == "dynamic":
        s = scaling.get("factor", 1.0)
        longer = base * (s * length / L - (s - 1)) ** (H / (H - 2)) if length > L else base
        return longer ** (-2 * c / H), 1.0
    if kind == "llama3":
        low = scaling.get("low_frequency_factor", 1.0)
        high = scaling.get("high_frequency_factor", 4.0)
        if wavelength > L / low:
            return w / s, 1.0
        if wavelength < L / high:
            return w, 1.0
        smooth = (L / wavelength - low) / (high - low)
        return (1 - smooth) * w / s + smooth * w, 1.0
    # YaRN: between these two pairs the turns are interpolated to those divided by s.
    bounds = []
    for rounds in (scaling.get("beta_fast", 32.0), scaling.get("beta_slow", 1.0)):
        # The pair that turns this many rounds in L tokens: L * base^(-2c / H) = 2 pi rounds.
        bounds.append(H / 2 * math.log(L / (2 * math.pi * rounds), base))
    first, last = max(0, math.floor(bounds[0])), min(H - 1, math.ceil(bounds[1]))
    ramp = min(1.0, max(0.0, (c - first) / (last - first)))
    multiplier = scaling.get("attention_factor", 0.1 * math.log(s) + 1)
    return ramp * w / s + (1 - ramp) * w, multiplier


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_stretched_rotation(scaling: dict[str, Any], interleaved: bool) -> None:
    H, base = 16, 500.0
    x = Shape(B=1, T=5, N=2, K=2, H=H).inputs(0)[0]
    pairs = [turn(c, H, base, scaling, length=5) for c in range(H // 2)]
    expected = rotate(x, np.arange(5), interleaved, pairs)
    options = {"max_wavelength": base, "interleaved": interleaved}
    turned = ops.rotary_embedding(x, scaling=scaling, **options)
    np.testing.assert_allclose(turned, expected, atol=1e-12)
    same = np.allclose(turned, ops.rotary_embedding(x, **options), atol=1e-6)
    assert same is (scaling == SCALINGS["dynamic short"])
    narrow = ops.rotary_embedding(x.astype("float32"), scaling=scaling, **options)
    np.testing.assert_allclose(narrow, expected, atol=1e-5)


def test_stretching_known_by_heart() -> None:
    """Numbers from the models' own code."""
    # Llama 3.1 (H = 128, base 500,000): pair 0 as it was, pair 63 eight times slower.
    frequencies = np.asarray(
        rotary_scaling.compute_frequencies(
            128, 5e5, rotary_scaling.check_scaling({"kind": "llama3"}), 0, "float64"
        )[0]
    )
    plain = 5e5 ** (-np.arange(64) / 64)
    np.testing.assert_allclose(frequencies[:29], plain[:29], rtol=1e-12)
    np.testing.assert_allclose(frequencies[35:], plain[35:] / 8, rtol=1e-12)
    assert np.all((frequencies[29:35] < plain[29:35]) & (frequencies[29:35] > plain[29:35] / 8))
    # YaRN as in DeepSeek-V3 (H = 64, base 10,000, 40 times 4,096): pairs 10 to 23.
    yarn = {"kind": "yarn", "factor": 40.0, "original_length": 4096}
    frequencies, multiplier = rotary_scaling.compute_frequencies(
        64, 1e4, rotary_scaling.check_scaling(yarn), 0, "float64"
    )
    frequencies = np.asarray(frequencies)
    plain = 1e4 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(frequencies[:11], plain[:11], rtol=1e-12)
    np.testing.assert_allclose(frequencies[23:], plain[23:] / 40, rtol=1e-12)
    assert np.all((frequencies[11:23] < plain[11:23]) & (frequencies[11:23] > plain[11:23] / 40))
    assert multiplier == pytest.approx(1.3688879)


@on_tensorflow
def test_dynamic_scaling_goes_by_the_length() -> None:
    x = Shape(B=1, T=4, N=1, K=1, H=8).inputs(0)[0]
    dynamic = {"kind": "dynamic", "original_length": 4}
    plain = ops.rotary_embedding(x)
    np.testing.assert_allclose(ops.rotary_embedding(x, scaling=dynamic), plain, atol=1e-12)
    ntk = {"kind": "ntk", "factor": 2.5}
    longer = ops.rotary_embedding(x, scaling=dynamic, length=10)
    np.testing.assert_allclose(longer, ops.rotary_embedding(x, scaling=ntk), atol=1e-12)
    at_the_end = ops.rotary_embedding(x, [6, 7, 8, 9], scaling=dynamic)
    expected = ops.rotary_embedding(x, [6, 7, 8, 9], scaling=ntk)
    np.testing.assert_allclose(at_the_end, expected, atol=1e-12)
    run = tf.function(lambda x, n: ops.rotary_embedding(x, scaling=dynamic, length=n))
    np.testing.assert_allclose(run(x, tf.constant(10)), longer, atol=1e-12)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ("linear", "`scaling` must be a dictionary whose `kind` is one of linear, ntk.*'linear'"),
        ({"kind": "su"}, "`scaling` must be a dictionary.*'su'"),
        ({"kind": "linear"}, "takes the options .'factor'. and needs factor"),
        ({"kind": "yarn", "factor": 2}, "needs original_length"),
        ({"kind": "ntk", "factor": 2, "base": 3}, "takes the options .'factor'..*base"),
        ({"kind": "ntk", "factor": 0.5}, "`factor` must be at least 1.*0.5"),
        ({"kind": "ntk", "factor": "2"}, "`factor` must be a finite number > 0.*'2'"),
        (
            {"kind": "llama3", "original_length": -1},
            "`original_length` must be a finite number > 0",
        ),
        (
            {"kind": "llama3", "low_frequency_factor": 4},
            "`low_frequency_factor` must be less than `high_frequency_factor`.*=4, .*=4.0",
        ),
        (
            {"kind": "yarn", "factor": 2, "original_length": 9, "beta_fast": 1},
            "`beta_slow` must be less than `beta_fast`.*=1.0, beta_fast=1",
        ),
    ],
)
def test_bad_scaling_is_named(scaling: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.rotary_embedding(np.ones((1, 2, 1, 4)), scaling=scaling)


# --- ALiBi --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (1, [2.0**-8]),
        (2, [2.0**-4, 2.0**-8]),
        (4, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]),
        (8, [2.0**-i for i in range(1, 9)]),
        (16, [2.0 ** (-i / 2) for i in range(1, 17)]),
        # Not a power of two: the slopes of the power below, then every other one of the power above.
        (6, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]),
        (3, [2.0**-4, 2.0**-8, 2.0**-2]),
    ],
)
def test_alibi_slopes(heads: int, expected: list[float]) -> None:
    slopes = ops.alibi_slopes(heads)
    assert np.asarray(slopes).dtype == np.float32
    np.testing.assert_allclose(slopes, expected, rtol=1e-6)


# --- T5 relative positions ----------------------------------------------------------------------


def bucket(relative: int, bidirectional: bool, buckets: int, furthest: int) -> int:
    """Return half of the buckets for single distances, half logarithmic up to `furthest`."""
    result, distance = 0, -relative
    if bidirectional:
        buckets //= 2
        if relative > 0:
            result += buckets
        distance = abs(relative)
    else:
        distance = max(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return result + distance
    step = math.log(distance / exact) / math.log(furthest / exact) * (buckets - exact)
    # 1e-6: exact powers must not fall into the bucket below by a rounding.
    return result + min(exact + int(step + 1e-6), buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (16, 1000)])
def test_relative_position_buckets(bidirectional: bool, buckets: int, furthest: int) -> None:
    relative = np.arange(-300, 301)
    actual = ops.relative_position_buckets(
        relative, bidirectional=bidirectional, num_buckets=buckets, max_distance=furthest
    )
    assert keras.backend.standardize_dtype(actual.dtype) == "int32"
    expected = np.array([bucket(int(r), bidirectional, buckets, furthest) for r in relative])
    wrong = np.asarray(actual) != expected
    # A distance exactly on a logarithmic boundary may round to either side.
    assert wrong.mean() < 0.01
    assert np.abs(np.asarray(actual) - expected).max() <= 1
    assert np.asarray(actual).min() >= 0
    assert np.asarray(actual).max() < buckets


def test_relative_position_bias_looks_up_j_minus_i() -> None:
    table = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    bias = np.asarray(ops.relative_position_bias(table, 4, 6))
    assert bias.shape == (1, 3, 4, 6)
    for i in range(4):
        for j in range(6):
            np.testing.assert_array_equal(bias[0, :, i, j], table[bucket(j - i, True, 32, 128)])
    later = ops.relative_position_bias(table, 2, 6, offset=2)
    np.testing.assert_array_equal(later, bias[:, :, 2:4])
    one_sided = np.asarray(ops.relative_position_bias(table, 4, 6, bidirectional=False))
    np.testing.assert_array_equal(one_sided[0, :, 0, 3], table[0])
    np.testing.assert_array_equal(one_sided[0, :, 3, 0], table[3])


def test_relative_position_bias_trains_its_table(implementation: str) -> None:
    """The gradient reaches the table through attention, and only the buckets in use."""
    query, key, value = (
        keras.ops.convert_to_tensor(x) for x in Shape(T=5, S=5).inputs(0, "float32")
    )
    table = np.random.default_rng(0).normal(size=(32, 2)).astype(np.float32)

    def attend(table: Any) -> Any:
        bias = ops.relative_position_bias(table, 5, 5)
        return ops.dot_product_attention(query, key, value, bias=bias)

    with small_blocks((2, 3)):
        out, pull = vjp(attend, table)
    gradient = np.asarray(keras.ops.convert_to_tensor(pull(2 * out)[0]))
    used = sorted({bucket(j - i, True, 32, 128) for i in range(5) for j in range(5)})
    assert gradient[used].any(axis=1).all()
    unused = [row for row in range(32) if row not in used]
    assert not gradient[unused].any()
