"""The notebooks run from top to bottom in the promised time, with pictures; their files can be reviewed."""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebooks import cells, run

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
MINUTES = 3  # on two cores


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_results(path):
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    first, *_ = notebook["cells"]
    assert first["source"][0].startswith("# ")
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_to_notebooks(path):
    links = re.findall(r"\]\((?!https://)([^)]+)\)", "\n".join(cells(path, "markdown")))
    assert links
    assert all((path.parent / link).is_file() for link in links)


def test_every_notebook_is_a_tutorial():
    page = (ROOT / "docs" / "tutorials.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(\.\./examples/notebooks/(\w+)\.ipynb\)", page)
    assert sorted(linked) == [path.stem for path in NOTEBOOKS]
    assert re.findall(r"^tutorials/(\w+)$", page, re.MULTILINE) == linked


def test_the_runner_counts_pictures_and_notices_errors(tmp_path):
    def notebook(*sources):
        path = tmp_path / "one.ipynb"
        listed = [{"cell_type": "code", "source": [source]} for source in sources]
        path.write_text(json.dumps({"cells": listed}))
        return path

    drawn = "import matplotlib.pyplot as plt\nplt.figure()\nplt.show()"
    assert (
        run(notebook(drawn, "x = 1", "plt.figure()", "x")) == 3
    )  # the last one twice: shown, and a value
    with pytest.raises(ZeroDivisionError):
        run(notebook("x = 0", "1 / x"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    if "import keras_hub" in "\n".join(cells(path, "code")):
        pytest.importorskip("keras_hub")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    environment |= dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"), "2")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "tests.notebooks", str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[-1]) >= 2
    assert not list(tmp_path.iterdir())  # it writes into temporary folders only
    # Seconds of two cores, which other processes do not change.
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 2 * 60 * MINUTES
