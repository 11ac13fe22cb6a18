"""The wheel: its checker can fail; building one is slow. `.ci/wheel` also tries it with several TensorFlows."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

CI = Path(__file__).resolve().parents[1] / ".ci"
pytestmark = pytest.mark.skipif(not CI.exists(), reason="a source distribution has no .ci")
WHEEL_FILE = "heed_attention-1.0.dist-info/WHEEL"
NAME = "heed_attention-1.0-py3-none-manylinux_2_28_x86_64.whl"
RIGHT = {
    "heed/__init__.py": "",
    "heed/py.typed": "",
    "heed/include/heed.h": "",
    "heed/include/heed_decoder.h": "",
    "heed/inspect/_page_files/page.html": "",
    "heed/inspect/_page_files/page.js": "",
    "heed/_lib/libheed_core.so": "",
    "heed/_lib/libheed_tf.so": "",
    "heed/_lib/libheed_xla.so": "",
    WHEEL_FILE: "Root-Is-Purelib: false\nTag: py3-none-manylinux_2_28_x86_64\n",
}


def checker() -> Any:
    spec = importlib.util.spec_from_file_location("check_wheel", CI / "check_wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def problems(folder: Path, name: str, files: dict[str, str]) -> list[str]:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return checker().problems(folder / name)


def without_libraries() -> dict[str, str]:
    files = {name: "" for name in RIGHT if "/_lib/" not in name and "/include/" not in name}
    return {**files, WHEEL_FILE: "Root-Is-Purelib: true\nTag: py3-none-any\n"}


@pytest.mark.parametrize("platform", ["manylinux_2_28_x86_64", "manylinux_2_28_aarch64"])
def test_a_right_wheel_passes(tmp_path: Path, platform: str) -> None:
    files = {**RIGHT, WHEEL_FILE: f"Root-Is-Purelib: false\nTag: py3-none-{platform}\n"}
    assert problems(tmp_path, f"heed_attention-1.0-py3-none-{platform}.whl", files) == []


def test_a_wheel_for_any_system_has_no_libraries(tmp_path: Path) -> None:
    name = "heed_attention-1.0-py3-none-any.whl"
    assert problems(tmp_path, name, without_libraries()) == []
    assert any("its libraries are" in problem for problem in problems(tmp_path, name, RIGHT))


def test_a_library_tied_to_one_python_is_noticed() -> None:
    pytest.importorskip("elftools", reason="needs pyelftools")
    extension = importlib.util.find_spec("_ctypes").origin
    found = checker().link_problems("x.so", Path(extension).read_bytes())
    assert any("uses Py" in problem for problem in found)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        (NAME.replace("manylinux_2_28", "linux"), {}, "is not tagged"),
        (NAME.replace("py3-none", "cp311-cp311"), {}, "is not tagged"),
        (NAME.replace("2_28", "2_36"), {}, "needs a glibc newer"),
        (
            NAME,
            {WHEEL_FILE: "Root-Is-Purelib: true"},
            "its WHEEL file says",
        ),
        (NAME, {"heed.libs/libstdc++.so.6": ""}, "its libraries are"),
        (NAME, {"heed/_lib/libheed_tf.so": None}, "its libraries are"),
        (NAME, {"tests/__init__.py": ""}, "tests/__init__.py does not belong"),
        (NAME, {"heed/py.typed": None}, "py.typed is missing"),
        (NAME, {"heed/inspect/_page_files/page.js": None}, "page.js is missing"),
    ],
)
def test_each_check_of_the_wheel_can_fail(
    tmp_path: Path, name: str, change: dict[str, str | None], told: str
) -> None:
    files = {file: text for file, text in {**RIGHT, **change}.items() if text is not None}
    assert any(told in problem for problem in problems(tmp_path, name, files))


def test_copies_of_the_libraries_stay_out_of_the_source_distribution(tmp_path: Path) -> None:
    """A wheel is made from it: one without native kernels would have them, another might have old ones."""
    pytest.importorskip("scikit_build_core", reason="needs scikit-build-core")
    root = tmp_path / "heed"
    for name in ("pyproject.toml", "README.md", "LICENSE", "src/heed/__init__.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CI.parent / name, root / name)
    for name in ("_lib/libheed_core.so", "include/heed.h"):
        (root / "src" / "heed" / name).parent.mkdir()
        (root / "src" / "heed" / name).touch()
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert "src/heed/__init__.py" in files
    assert not [name for name in files if "/_lib/" in name or "/include/" in name]


@pytest.mark.slow
def test_a_wheel_is_built_and_right(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    environment = {**os.environ, "DIST": str(tmp_path)}
    made = subprocess.run(
        [str(CI / "wheel")], env=environment, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    assert "tag, contents and links are right" in made.stdout
    assert len(list(tmp_path.glob("*.whl"))) == len(list(tmp_path.glob("*.tar.gz"))) == 1
