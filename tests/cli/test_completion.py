"""Completion scripts for shells."""

import subprocess
import sys

import pytest

from heed.cli._completion import SHELLS
from tests.cli.command import fails


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_commands_options_and_files(heed, shell):
    pytest.importorskip("shtab")
    status, out, err = heed("--print-completion", shell)
    assert (status, err) == (0, "")
    assert [
        word for word in ("translate", "num-key-value-heads", "catalogs") if word not in out
    ] == []


def test_completion_in_bash(heed, tmp_path):
    pytest.importorskip("shtab")
    (tmp_path / "heed.sh").write_text(heed("--print-completion", "bash")[1])
    program = (
        "source heed.sh; COMP_WORDS=(heed train --st); COMP_CWORD=2; _shtab_heed; echo ${COMPREPLY[@]};"
        "COMP_WORDS=(heed tr); COMP_CWORD=1; _shtab_heed; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "--steps\ntrain translate\n"


def test_completion_without_its_library(heed, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    fails(heed("--print-completion", "zsh"), 1, "--print-completion needs the shtab library: pip")
