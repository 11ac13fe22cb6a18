"""Translators without a model, for tests of the rest."""

import functools
import os
from pathlib import Path

from heed.seq2seq.corpus.inputs import scan
from heed.seq2seq.corpus.job import ShardResult

SETTINGS = {"run": "fake", "beam_size": 1}


def translate(shard):
    """Return upper case; an empty line stays empty, and "bad" cannot be translated."""
    lines = shard.lines()
    output = "".join("\n" if line == "bad" else f"{line.upper()}\n" for line in lines)
    problems = [
        f"line {number:,}: no"
        for number, line in enumerate(lines, shard.first_line)
        if line == "bad"
    ]
    return ShardResult(shard.file, shard.number, len(lines), output.encode(), tuple(problems))


def here(_, shards):
    """Yield workers: in this process, one shard after the other."""
    yield from map(translate, shards)


def make(warn):
    warn("loaded")
    return translate


def make_mortal(folder, signals, warn):
    """Return a worker that sends itself the next signal at the line "death"; the folder counts them."""

    def mortal(shard):
        if "death" in shard.lines():
            count = len(list(Path(folder).iterdir()))
            if count < len(signals):
                (Path(folder) / str(count)).touch()
                os.kill(os.getpid(), signals[count])
        return translate(shard)

    return mortal


def make_broken(error, warn):
    raise error


def mortal(folder, signals):
    return functools.partial(make_mortal, str(folder), signals)


def write_corpus(folder):
    """Return three files: of many lines, of none, and without an end of the last line."""
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"line {i}\n" for i in range(9)) + "\nbad\n")
    (folder / "b.txt").write_text("")
    (folder / "c.txt").write_text("\ufeffone\r\n\n\nbad\nfive")
    return [scan(folder / name, 2) for name in ("a.txt", "b.txt", "c.txt")]


EXPECTED = {
    "a.txt": "".join(f"LINE {i}\n" for i in range(9)) + "\n\n",
    "b.txt": "",
    "c.txt": "ONE\r\n\n\n\nFIVE\n",
}


def contents(folder):
    """Return the visible files of a folder."""
    return {
        path.name: path.read_bytes().decode() for path in sorted(folder.iterdir()) if path.is_file()
    }
