"""`heed translate` of several files."""

import signal
import subprocess
import time

import pytest

from heed.seq2seq import RunFolder
from heed.seq2seq.corpus.job import ShardTranslator
from tests.cli.command import children_of, fails, process
from tests.seq2seq.corpus.fakes import contents

pytestmark = pytest.mark.usefixtures("all_end")
WORDS = ["--input", "in/*.txt", "--output", "out", "--shard-lines", "3"]


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("".join(f"{i}\n" for i in range(11)) + "\nx\n5\n")
    (tmp_path / "in/b.txt").write_text("")
    (tmp_path / "in/c.txt").write_text("\ufeff1\r\n22\n\n333", encoding="utf-8")
    return tmp_path


def translate_each(heed, run_path, *options):
    """Return the translation of each file alone."""
    out = {}
    for name in ("a", "b", "c"):
        path = f"{name}-alone.txt"
        heed("translate", run_path, "--input", f"in/{name}.txt", "--output", path, *options)
        with open(path, encoding="utf-8") as file:
            out[f"{name}.txt"] = file.read()
    return out


def test_a_stopped_translation_continues(heed, run_path, corpus, monkeypatch):
    """The same bytes as of each file alone; bad lines by file and number."""
    options = ["--beam-size", "2", "--n-best", "2", "--scores"]
    expected = translate_each(heed, run_path, *options)
    real, calls = ShardTranslator.__call__, []

    def stopping(self, shard):
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(shard)
        return real(self, shard)

    monkeypatch.setattr(ShardTranslator, "__call__", stopping)
    status, out, err = heed("translate", run_path, *WORDS, *options)
    assert (status, out) == (130, "")
    assert err.splitlines()[-1] == ("heed: stopped after 4 of 7 shards; the same command continues")
    monkeypatch.setattr(ShardTranslator, "__call__", real)
    status, out, err = heed("translate", run_path, *WORDS, *options)
    assert (status, out) == (1, "")
    assert contents(corpus / "out") == expected
    first, bad, last = err.splitlines()
    assert first == "heed: 7 shards of 3 files; 4 are there already"
    assert bad.startswith("heed: in/a.txt, line 13: a number must be digits")
    assert last.startswith("heed: 18 lines are in out; 1 could not be translated (")
    other = heed("translate", run_path, *WORDS, "--beam-size", "3")
    fails(other, 1, "out holds another translation: `beam_size` was 2, now it is 3")
    quiet = heed("translate", run_path, *WORDS, *options, "--quiet")
    assert quiet == (1, "", f"{bad}\n")
    (corpus / "weights").write_bytes(b"of another training")
    monkeypatch.setattr(RunFolder, "weights", corpus / "weights")
    fails(heed("translate", run_path, *WORDS, *options), 1, "the weights of the run have changed")


def test_samples_do_not_depend_on_the_order_of_shards(heed, run_path, corpus):
    words = ["--temperature", "3", "--seed", "7", *WORDS]
    assert heed("translate", run_path, *words, "--quiet")[0] == 1
    found = contents(corpus / "out")
    (corpus / "out/c.txt").unlink()
    assert heed("translate", run_path, *words, "--quiet")[0] == 1
    assert contents(corpus / "out") == found
    assert len(set(found["a.txt"].splitlines())) > 8


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--input", "none/*.txt", "--output", "out"], 1, "no file matches --input 'none/*.txt'"),
        (["--input", "none.txt", "--output", "out", "--launch", "local"], 1, "none.txt: No such"),
        (["--input", "in/*.txt"], 2, "several files need --output, a folder"),
        (["--input", "in", *WORDS[2:]], 2, "a pattern of files, such as 'in/*.txt'"),
        (["--output", "in"], 2, "several files need --input"),
        (["--launch", "local"], 2, "several files need --input"),
        ([*WORDS, "--workers", "2"], 2, "--workers needs --launch: local or ray"),
        ([*WORDS, "--launch", "local", "--workers", "0"], 2, "--workers must be an integer >= 1"),
        ([*WORDS, "--launch", "slurm"], 2, "invalid choice: 'slurm'"),
        ([*WORDS, "--shard-lines", "0"], 2, "--shard-lines must be an integer >= 1"),
        ([*WORDS, "in/b.txt"], 2, "quote a pattern, as in --input 'corpus/*.txt'"),
        ([*WORDS, "--picture"], 2, "--picture needs the text"),
        ([*WORDS, "--language", "fr"], 2, "must be one of en, de"),
        ([*WORDS, "--prefix", ""], 2, "a prefix must not be empty"),
        (["--input", "in/*.txt", "--output", "in"], 1, "in/a.txt exists already, and it is the"),
        (["--input", "in/*.txt", "--output", "in/a.txt"], 1, "--output must be a folder"),
    ],
)
def test_what_cannot_be_translated(heed, run_path, corpus, words, status, message):
    fails(heed("translate", run_path, *words, "--quiet"), status, message)
    assert not (corpus / "out").exists()


def test_an_unfinished_run_is_refused(heed, run_path, corpus):
    weights = run_path / "weights.npz"
    weights.rename(run_path / "hidden.npz")
    try:
        fails(heed("translate", run_path, *WORDS), 1, "is not finished, and its weights may change")
    finally:
        (run_path / "hidden.npz").rename(weights)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "parent", "interrupt", "none"])
def test_workers_and_a_kill_at_any_time(heed, run_path, corpus, victim):
    """The result is that of one undisturbed process, byte for byte, and no worker is left."""
    (corpus / "in/a.txt").write_text("".join(f"{i}\n" for i in range(3_000)) + "\nx\n5\n")
    expected = translate_each(heed, run_path)
    words = ["translate", run_path, *WORDS[:4], "--shard-lines", "100", "--launch", "local"]
    words += ["--workers", "2", "--device-threads", "2"]
    with process(*words, cwd=corpus) as parent:
        shards = corpus / "out/.heed/shards"
        end = time.monotonic() + 120
        while not (shards.exists() and len(list(shards.iterdir())) > 2):
            assert time.monotonic() < end
            assert parent.poll() is None, parent.stderr.read()
            time.sleep(0.01)
        workers = children_of(parent)
        if victim == "worker":
            subprocess.run(["kill", "-9", str(workers[0])], check=True)
        elif victim == "parent":
            parent.send_signal(signal.SIGKILL)
        elif victim == "interrupt":
            parent.send_signal(signal.SIGINT)
        _, err = parent.communicate(timeout=240)
    assert len(workers) == 2
    if victim == "worker":
        assert "was killed by SIGKILL: starting another one" in err
    if victim == "interrupt":
        assert parent.returncode == 130
        assert err.splitlines()[-1].endswith("; the same command continues")
    if victim in ("parent", "interrupt"):
        assert contents(corpus / "out") != expected
        with process(*words, cwd=corpus) as parent:
            _, err = parent.communicate(timeout=240)
        assert "are there already" in err
    assert parent.returncode == 1
    assert "in/a.txt, line 3,002: a number must be digits" in err
    assert contents(corpus / "out") == expected
    assert not list((corpus / "out").rglob("*.tmp"))
