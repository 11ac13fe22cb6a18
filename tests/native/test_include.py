"""Programs in C that know nothing of the library but its installed headers."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests import reference
from tests.native.core import LIBRARY
from tests.tolerances import assert_gradients, assert_statistics, assert_values

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(
    LIBRARY is None or COMPILER is None, reason="needs the native library and a C compiler"
)
B, T, S, N, K, H, V = 2, 5, 7, 4, 2, 8, 6


@pytest.fixture(scope="module", params=["attend"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("c") / request.param
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    header = LIBRARY.parents[1] / "include"
    places = [f"-I{header}", f"-L{LIBRARY.parent}", f"-Wl,-rpath,{LIBRARY.parent}"]
    command = [COMPILER, *strict, *places, str(Path(__file__).with_name(f"{request.param}.c"))]
    told = subprocess.run(
        [*command, "-lheed_core", "-o", str(made)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    return made


def test_a_c_program_computes_attention_forward_and_backward(program: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = [(B, T, N, H), (B, S, K, H), (B, S, K, V), (1, N, T, S), (B, T, N, V)]
    query, key, value, bias, d_out = inputs = [
        rng.normal(size=shape).astype(np.float32) for shape in shapes
    ]
    told = subprocess.run(
        [program], input=b"".join(x.tobytes() for x in inputs), capture_output=True, check=False
    )
    assert told.returncode == 0, told.stderr
    numbers = iter(np.frombuffer(told.stdout, np.float32))

    def read(*shape: int) -> np.ndarray:
        return np.fromiter(numbers, np.float32, int(np.prod(shape))).reshape(shape)

    i, j = np.arange(T)[:, None], np.arange(S)
    mask = (j <= i + 1) & (j < np.array([S, 4])[:, None, None, None])
    options = {"mask": mask, "bias": bias, "scale": 0.25}
    wanted = reference.dot_product_attention(query, key, value, **options)
    assert_values(read(B, T, N, V), wanted.out, "float32")
    assert_statistics(read(B, N, T), wanted.lse, "float32")
    gradients = reference.dot_product_attention_backward(query, key, value, d_out, **options)
    for name, shape in zip(("query", "key", "value", "bias"), shapes, strict=False):
        assert_gradients(read(*shape), getattr(gradients, name), "float32", name)
    # One head: the first of those that the tensors have.
    heads = (x[:, :, 0] for x in (query, key, value))
    additive = reference.additive_attention(*heads, query[0, 0, 0], mask=mask[:, 0])
    assert_values(read(B, T, N, V)[:, :, 0], additive.out, "float32")
    assert next(numbers, None) is None


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="counts in the place of glibc's functions"
)
@pytest.mark.parametrize("program", ["decode"], indirect=True)
@pytest.mark.parametrize("beams", [1, 4])
def test_decoding_allocates_once_and_for_each_token_no_more_than_its_keys_and_values(
    program: Path, beams: int
) -> None:
    def allocated(length: int) -> tuple[int, int]:
        told = subprocess.run(
            [program, str(length), str(beams)], capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, told.stderr
        total, calls = map(int, told.stdout.split())
        return total, calls

    (short, once), (longer, again), (longest, still) = map(allocated, (256, 512, 768))
    assert once == again == still == 1
    assert longest - longer == longer - short  # no copy of what was there before
    kept = 3 * beams * 2 * 2 * 64 * 4  # rows, layers, key and value, width, bytes
    assert kept <= (longer - short) / 256 < 1.05 * kept
