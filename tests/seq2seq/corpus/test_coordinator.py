"""Shards, manifest, order, bad lines and continuing, with a translator that needs no model."""

import gzip
import hashlib
import itertools
import os
import random
import re

import pytest

from heed.files import temporary_path
from heed.seq2seq import TaskError
from heed.seq2seq.corpus import _output_folder, coordinator
from heed.seq2seq.corpus.inputs import find_inputs, scan
from tests import damage as damages
from tests.seq2seq.corpus import fakes


@pytest.fixture
def inputs(tmp_path):
    return fakes.write_corpus(tmp_path / "corpus")


@pytest.fixture
def run(inputs, tmp_path):
    """Translate the corpus; return the summary and the lines that were reported."""

    def translate(
        workers=fakes.here, settings=fakes.SETTINGS, inputs=inputs, out="out", note=lambda _: None
    ):
        reported = []
        done = coordinator.translate_corpus(
            inputs, tmp_path / out, settings, workers, reported.append, note
        )
        return done, reported

    return translate


@pytest.mark.parametrize("lines", [1, 2, 3, 11, 100])
@pytest.mark.parametrize("text", ["", "a", "a\n", "\n", "\n\n", "a\nb", "é\n\nb\n", "x\n" * 11])
def test_shards_are_all_lines_in_order(tmp_path, lines, text):
    (tmp_path / "in.txt").write_text(text, encoding="utf-8")
    file = scan(tmp_path / "in.txt", lines)
    shards = [file.read_shard(0, number) for number in range(len(file.starts))]
    assert b"".join(shard.data for shard in shards).decode() == text
    expected = text.removesuffix("\n").split("\n") if text else []
    assert [line for shard in shards for line in shard.lines()] == expected
    assert file.lines == len(expected)
    assert [shard.first_line for shard in shards] == [*range(1, len(expected) + 1, lines)]


def test_a_compressed_file_is_translated_to_a_plain_one(tmp_path):
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_bytes(b"x\n\xff\ny")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "copies").mkdir()
    one, other = (scan(path, 2, tmp_path / "copies") for path in (plain, packed))
    assert (one.path.name, other.path.name) == ("a.txt", "b.txt")
    for n in (0, 1):
        assert one.read_shard(0, n).data == other.read_shard(0, n).data
    assert (one.sha256, one.text) == (other.sha256, plain)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(TaskError, match="Compressed file ended"):
        scan(packed, 2, tmp_path / "copies")


def test_a_file_that_changes_meanwhile(inputs):
    inputs[0].path.write_text("other\n" * 50)
    with pytest.raises(TaskError, match="changed while it was translated"):
        inputs[0].read_shard(0, 1)


def test_finding_inputs(tmp_path):
    for name in ("b.txt", "a.txt", "c.md", "d/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in find_inputs(tmp_path / "*.txt")] == ["a.txt", "b.txt"]
    assert find_inputs(tmp_path / "c.md") == [tmp_path / "c.md"]
    with pytest.raises(TaskError, match=r"no file matches --input '.*/\*\.csv'"):
        find_inputs(tmp_path / "*.csv")
    with pytest.raises(TaskError, match="needs a name of its own"):
        find_inputs(tmp_path / "**" / "*.txt")
    with pytest.raises(FileNotFoundError):
        find_inputs(tmp_path / "none.txt")
    with pytest.raises(TaskError, match=r"--input must .* pattern of files"):
        find_inputs(tmp_path / "d")
    (tmp_path / "a.txt.gz").touch()
    with pytest.raises(TaskError, match=r"a\.txt\.gz are both a\.txt"):
        find_inputs(tmp_path / "a.*")
    (tmp_path / "odd[1].txt").touch()  # a file of this name is no pattern
    assert find_inputs(tmp_path / "odd[1].txt") == [tmp_path / "odd[1].txt"]


def test_order_and_bad_lines_whatever_comes_first(run, inputs, tmp_path):
    def shuffled(_, shards):
        shards = list(shards)
        random.Random(3).shuffle(shards)
        yield from map(fakes.translate, shards)

    done, reported = run(shuffled)
    assert fakes.contents(tmp_path / "out") == fakes.EXPECTED
    lines = {0: 11, 2: 4}
    assert sorted(reported) == [f"{inputs[i].path}, line {n}: no" for i, n in lines.items()]
    assert done == coordinator.Summary(files=3, lines=16, problems=2, shards=9, ready=0)


@pytest.mark.parametrize("stop", [0, 4, 6, 8])
def test_a_second_call_continues(run, tmp_path, stop):
    """After a stop at any shard it translates only the others, and reports the same lines."""
    with pytest.raises(KeyboardInterrupt, match=f"stopped after {stop} of 9 shards; the same"):
        run(stop_after(stop))
    counts = []
    done, reported = run(lambda count, shards: counts.append(count) or fakes.here(count, shards))
    assert fakes.contents(tmp_path / "out") == fakes.EXPECTED
    assert len(reported) == 2
    assert (done.ready, counts) == (stop, [9 - stop])
    again, reported = run(lambda *_: pytest.fail("nothing is missing"))
    assert (again.ready, again.problems, len(reported)) == (9, 2, 2)
    (tmp_path / "out/c.txt").unlink()
    done, reported = run()
    assert fakes.contents(tmp_path / "out") == fakes.EXPECTED
    assert (done.ready, len(reported)) == (6, 2), "what was removed is translated again"


def test_a_stop_between_any_two_writes(run, tmp_path, monkeypatch):
    """Whatever has been written when the process is killed, a second call ends with the same files."""
    real = _output_folder.write_atomically
    for writes in range(1, 13):  # the manifest, nine shards; two files with their records
        out, count = f"out-{writes}", itertools.count()

        def failing(path, write, count=count, writes=writes):
            if next(count) == writes:
                path.with_name(f".{path.name}.half.tmp").write_bytes(b"half")
                raise OSError(28, "No space left on device", str(path))
            real(path, write)

        monkeypatch.setattr(_output_folder, "write_atomically", failing)
        with pytest.raises(OSError, match="No space left"):
            run(out=out)
        monkeypatch.setattr(_output_folder, "write_atomically", real)
        run(out=out)
        assert fakes.contents(tmp_path / out) == fakes.EXPECTED
        assert not list((tmp_path / out / ".heed/shards").iterdir())


def test_another_translation_is_refused(run, inputs, tmp_path):
    run()

    def refused(message, **kwargs):
        with pytest.raises(TaskError, match=message) as caught:
            run(lambda *_: pytest.fail("refused before"), **kwargs)
        assert "\n" not in str(caught.value)

    refused("`beam_size` was 1, now it is 4", settings={**fakes.SETTINGS, "beam_size": 4})
    # An option that was new since, whose default alone goes on.
    assert run(settings={**fakes.SETTINGS, "min_p": None})[0].ready == 9
    refused(r"`min_p` was None, now it is 0\.1", settings={**fakes.SETTINGS, "min_p": 0.1})
    refused(r"the input c\.txt is missing; choose another --output", inputs=inputs[:2])
    (tmp_path / "corpus/d.txt").write_text("new\n")
    more = scan(tmp_path / "corpus/d.txt", 2)
    refused(r"the input d\.txt is new", inputs=[*inputs, more])
    inputs[1].path.write_text("changed\n")
    refused(r"the input b\.txt has changed", inputs=[inputs[0], scan(inputs[1].path, 2), inputs[2]])
    refused("it is the input: choose another --output", out="corpus")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/c.txt").write_text("mine")
    refused(r"taken/c\.txt exists already, and heed did not write it", out="taken")
    (tmp_path / "file").touch()
    refused("--output must be a folder for several files", out="file")
    (tmp_path / "out/c.txt").write_text("edited")
    refused(r"c\.txt has been changed: delete it to translate it again")
    (tmp_path / "out/.heed/manifest.json").write_text("{}")
    refused(r"manifest\.json is damaged")


def test_two_processes_do_not_write_one_folder(run, inputs, tmp_path):
    opened = _output_folder.OutputFolder.open(tmp_path / "out", inputs, fakes.SETTINGS, print)
    with opened, pytest.raises(TaskError, match=r"another process writes .*out"):
        run()
    run()


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def replace_by(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


DAMAGES = {
    "cut": replace_by(lambda data: data[:-2]),
    "emptied": replace_by(lambda data: b""),
    "longer": replace_by(lambda data: data + b"more\n"),
    "zeros": replace_by(lambda data: bytes(len(data))),
    "garbled": replace_by(lambda data: data.replace(b'": ', b'":{')),
    "not an object": replace_by(lambda data: b"[1]\n" + data),
    "another problem": replace_by(lambda data: data.replace(b'"problems": [', b'"problems": ["x"')),
    "a pipe": replace_by_pipe,
}


def stop_after(count):
    def workers(_, shards):
        yield from map(fakes.translate, itertools.islice(shards, count))
        raise KeyboardInterrupt

    return workers


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_shard_or_record_is_one_line_and_made_again(run, tmp_path, damage):
    """Joined as it is, it would give another file, with success."""
    if damage is replace_by_pipe and not hasattr(os, "mkfifo"):
        pytest.skip("this system has no pipes with names")
    notes = []
    with pytest.raises(KeyboardInterrupt):
        run(stop_after(3))
    damage(tmp_path / "out/.heed/shards/00000-0000001")
    done, reported = run(note=notes.append)
    assert fakes.contents(tmp_path / "out") == fakes.EXPECTED
    assert (done.ready, len(reported)) == (2, 2)
    (note,) = (one for one in notes if "damaged" in one)
    assert re.search(r"00000-0000001 is damaged: .*: shard 2 of a\.txt is translated again", note)
    record = tmp_path / "out/.heed/files/00002.json"
    before = record.read_bytes()
    damage(record)
    if record.is_file() and record.read_bytes() == before:
        return
    notes.clear()
    done, reported = run(note=notes.append)
    assert fakes.contents(tmp_path / "out") == fakes.EXPECTED
    assert (done.ready, len(reported)) == (6, 2)
    assert record.read_bytes() == before
    assert any(re.search(r"00002\.json is damaged: .*: c\.txt is tr", note) for note in notes)
    (tmp_path / "out/a.txt").unlink()
    if hasattr(os, "mkfifo"):  # reading it would wait for ever
        os.mkfifo(tmp_path / "out/a.txt")
        with pytest.raises(OSError, match="it is not a regular file"):
            run()


def test_any_byte_of_a_shard_counts(tmp_path):
    path = tmp_path / "00000-0000000"
    head = _output_folder._make_head(path, ["no"], hashlib.sha256(b"one\ntwo\n").hexdigest())
    for kind in (damages.flipped, damages.cut):
        for place, data in kind(head + b"one\ntwo\n"):
            path.write_bytes(data)
            with pytest.raises(_output_folder._DamagedError):
                pytest.fail(f"{place}: {_output_folder._read_shard(path)}")
    path.write_bytes(head + b"one\ntwo\n")
    assert _output_folder._read_shard(path) == ["no"]
    with pytest.raises(_output_folder._DamagedError):  # in the place of another
        _output_folder._read_shard(path.rename(tmp_path / "00000-0000001"))


def test_a_shard_that_is_damaged_while_others_are_translated(run, tmp_path):
    def workers(_, shards):
        for shard in shards:
            yield fakes.translate(shard)
            if shard.number == 1:
                DAMAGES["cut"](tmp_path / "out/.heed/shards/00000-0000000")

    with pytest.raises(TaskError, match=r"0-0000000 is damaged: .*: the same command translates"):
        run(workers)
    run()
    assert fakes.contents(tmp_path / "out") == fakes.EXPECTED


@pytest.mark.parametrize(
    "name", [b"d\xe9j\xe0.txt", b"x" * 251 + b".txt", "é".encode() * 127, b"\xff" * 255]
)
def test_names_of_files_may_be_long_and_not_utf_8(run, tmp_path, name):
    path = tmp_path / os.fsdecode(name)
    try:
        path.write_text("one\n\nbad\n")
    except OSError:
        pytest.skip("this system has no such names")
    with pytest.raises(KeyboardInterrupt):
        run(stop_after(1), inputs=[scan(path, 1)])
    (tmp_path / "out" / temporary_path(path).name).write_text("half")
    done, _ = run(inputs=[scan(path, 1)])
    assert (done.ready, done.problems) == (1, 1)
    assert fakes.contents(tmp_path / "out") == {path.name: "ONE\n\n\n"}


def test_a_name_that_the_folder_does_not_take_is_refused_first(run, inputs, monkeypatch):
    monkeypatch.setattr(os, "pathconf", lambda *_: 4)
    with pytest.raises(TaskError, match="too long for --output"):
        run(lambda *_: pytest.fail("refused before"))


def test_pipes_and_broken_links_are_no_inputs(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "c.txt").symlink_to("nowhere")
    with pytest.raises(TaskError, match=r"c\.txt is a link to nothing"):
        find_inputs(tmp_path / "*.txt")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "b.txt")
        for found in ("*.txt", "b.txt"):
            with pytest.raises(TaskError, match=r"regular file|--input must be a file"):
                find_inputs(tmp_path / found)
        with pytest.raises(OSError, match="it is not a regular file"):
            scan(tmp_path / "b.txt", 2)
