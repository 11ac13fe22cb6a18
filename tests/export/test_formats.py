"""The registry of formats, and what is made from it."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from heed.cli import main
from heed.export import FORMATS, export, runners
from heed.export._verify import TOLERANCES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_has_a_writer_a_runner_and_tolerances(name):
    entry = FORMATS[name]
    for package in entry.packages:
        pytest.importorskip(package)
    assert entry.name == name
    assert list(inspect.signature(entry.write_artefact).parameters) == ["job", "folder"]
    runner = pytest.importorskip(f"{runners.__name__}._{name}")
    assert list(inspect.signature(runner.load).parameters) == ["folder", "threads"]
    assert set(entry.precisions) <= set(TOLERANCES)
    for option in entry.options:
        assert option.name in inspect.signature(export).parameters


@pytest.mark.parametrize("name", ["_run", *(f"_{name}" for name in FORMATS)])
def test_runners_need_only_their_runtimes(name):
    path = Path(runners.__file__).with_name(f"{name}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    others = {
        "_gguf": {"llama_cpp"},
        "_run": {"sentencepiece"},
        "_saved_model": {"tensorflow", "heed"},  # heed for native kernels only
    }
    known = others.get(name) or FORMATS[name.removeprefix("_")].packages
    assert found <= {*sys.stdlib_module_names, "numpy", *known}


def test_the_command_line_and_the_docs_list_the_formats(capsys):
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    page = (DOCS / "export.md").read_text(encoding="utf-8")
    for entry in FORMATS.values():
        assert f"{entry.name}: {', '.join(entry.precisions)}" in shown
        for option in entry.options:
            assert (f"--{option.name}" in shown) == (option.type is not None)
        assert f'"{entry.name}"' in (export.__doc__ or "")
    titles, precisions = (
        " | ".join(cells)
        for cells in (
            [entry.title for entry in FORMATS.values()],
            [", ".join(entry.precisions) for entry in FORMATS.values()],
        )
    )
    assert f"| {titles} |" in page
    assert f"| {precisions} |" in page


def test_help_loads_no_framework():
    code = "import heed.cli._export, sys; print([x for x in ('numpy', 'tensorflow') if x in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
