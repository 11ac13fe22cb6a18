"""Messages say how to install what is missing, for the way in which heed was installed."""

import importlib.metadata
import json
import re
import sys
from pathlib import Path

import pytest

from heed import install

ROOT = Path(__file__).parents[1]


class Distribution:
    """An installed distribution that came from somewhere."""

    def __init__(self, direct_url):
        self._text = direct_url if isinstance(direct_url, str | None) else json.dumps(direct_url)

    def read_text(self, name):
        assert name == "direct_url.json"
        return self._text


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, "pip install 'heed-attention[demo]'"),
        ("", "pip install 'heed-attention[demo]'"),
        ("{", "pip install 'heed-attention[demo]'"),
        ({"url": "{folder}", "dir_info": {}}, "pip install '{path}[demo]'"),
        (
            {"url": "{folder}", "dir_info": {"editable": True}},
            "pip install -e '{path}[demo]'",
        ),
        ({"url": "file:///not/there", "dir_info": {}}, "pip install 'heed-attention[demo]'"),
        (
            {"url": "file:///tmp/heed.whl", "archive_info": {}},
            "pip install 'heed-attention[demo]'",
        ),
        (
            {
                "url": "https://host/heed",
                "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "abc"},
            },
            "pip install 'heed-attention[demo] @ git+https://host/heed@v1'",
        ),
        (
            {"url": "https://host/heed", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'heed-attention[demo] @ git+https://host/heed@abc'",
        ),
    ],
)
def test_the_command_follows_the_way_of_installation(monkeypatch, tmp_path, direct_url, command):
    folder = tmp_path / "a folder"
    folder.mkdir()
    if isinstance(direct_url, dict):
        direct_url = {**direct_url, "url": direct_url["url"].format(folder=folder.as_uri())}

    def distribution(name):
        assert name == "heed-attention"
        return Distribution(direct_url)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    assert install.how_to_install("demo") == command.format(path=folder)


def test_a_source_tree_that_is_not_installed(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert install.how_to_install("demo") == "pip install 'heed-attention[demo]'"


def test_the_distribution_is_heed_attention():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'name = "{install.DISTRIBUTION}"\n' in text
    assert importlib.metadata.version(install.DISTRIBUTION) == "0.1.0"


def test_no_message_advises_to_install_the_other_package_called_heed():
    """`heed` on the package index is another project."""
    wrong = re.compile(r"heed\[\w+\]|pip3? install( -\S+)* +['\"]?heed(?![-\w/])")
    assert wrong.search("pip install 'heed[demo]'")
    assert wrong.search("pip install -U heed")
    assert not wrong.search("pip install 'heed-attention[demo]'")
    files = [ROOT / "pyproject.toml", *ROOT.glob("*.md")]
    files += [
        p for f in ("src", "docs", "benchmarks", "examples", ".ci") for p in (ROOT / f).rglob("*")
    ]
    texts = {p: p.read_text(encoding="utf-8") for p in files
             if p.suffix in {".py", ".md", ".toml", ""} and p.is_file()}  # fmt: skip
    assert len(texts) > 50
    assert [str(path) for path, text in texts.items() if wrong.search(text)] == []


@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [
        ("sentencepiece", "heed.seq2seq.tokens.tokenizer:_sentencepiece()", "demo"),
        ("num2words", "heed.seq2seq.tasks.number_words:spell(7)", "demo"),
        ("matplotlib", "heed.figure:new_figure(1, 1)", "demo"),
    ],
)
def test_each_message_says_it(monkeypatch, package, call, extra):
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails
    module, expression = call.split(":")
    names = vars(__import__(module, fromlist=["x"]))
    with pytest.raises((ImportError, ValueError)) as caught:
        eval(expression, dict(names))
    assert str(caught.value).endswith(install.how_to_install(extra))
    assert package in str(caught.value)
