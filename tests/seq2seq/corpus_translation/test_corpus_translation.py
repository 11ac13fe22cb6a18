"""Shards, manifest, order, bad lines and continuing, with a translator that needs no model."""

import gzip
import itertools
import random

import pytest

from heed.seq2seq import TaskError
from heed.seq2seq.corpus_translation import coordinator, output_folder
from heed.seq2seq.corpus_translation.inputs import find_inputs, scan
from tests.seq2seq.corpus_translation import fakes


@pytest.fixture
def inputs(tmp_path):
    return fakes.write_corpus(tmp_path / "corpus")


@pytest.fixture
def run(inputs, tmp_path):
    """Translates the corpus; returns the summary and the lines that were reported."""

    def translate(workers=fakes.here, settings=fakes.SETTINGS, inputs=inputs, out="out"):
        reported = []
        done = coordinator.translate_corpus(
            inputs, tmp_path / out, settings, workers, reported.append, lambda _: None
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
    assert [one.read_shard(0, n).data for n in (0, 1)] == [
        other.read_shard(0, n).data for n in (0, 1)
    ]
    assert (one.sha256, one.text) == (other.sha256, plain)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(TaskError, match=r"cannot read .*b\.txt\.gz: Compressed file ended"):
        scan(packed, 2, tmp_path / "copies")
    packed.write_bytes(b"BZh91AY&SY...")
    with pytest.raises(TaskError, match=r"b\.txt\.gz is compressed by bzip2: unpack it"):
        scan(packed, 2, tmp_path / "copies")


def test_a_file_that_changes_meanwhile(inputs):
    inputs[0].path.write_text("other\n" * 50)
    with pytest.raises(TaskError, match=r"a\.txt has changed while it was translated"):
        inputs[0].read_shard(0, 1)


def test_finding_inputs(tmp_path):
    for name in ("b.txt", "a.txt", "c.md", "d/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in find_inputs(tmp_path / "*.txt")] == ["a.txt", "b.txt"]
    assert find_inputs(tmp_path / "c.md") == [tmp_path / "c.md"]
    with pytest.raises(TaskError, match=r"no file matches --input '.*/\*\.csv'"):
        find_inputs(tmp_path / "*.csv")
    with pytest.raises(TaskError, match=r"each input needs a name of its own: .* are both a\.txt"):
        find_inputs(tmp_path / "**" / "*.txt")
    with pytest.raises(FileNotFoundError):
        find_inputs(tmp_path / "none.txt")
    with pytest.raises(TaskError, match="--input must be a file, or a pattern of files"):
        find_inputs(tmp_path / "d")
    (tmp_path / "a.txt.gz").touch()
    with pytest.raises(TaskError, match=r"own: .*a\.txt and .*a\.txt\.gz are both a\.txt"):
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
    assert sorted(reported) == [
        f"{inputs[0].path}, line 11: no",
        f"{inputs[2].path}, line 4: no",
    ]
    assert done == coordinator.Summary(files=3, lines=16, problems=2, shards=9, ready=0)


@pytest.mark.parametrize("stop", [0, 4, 6, 8])
def test_a_second_call_continues(run, tmp_path, stop):
    """After a stop at any shard it translates only the others, and reports the same lines."""
    seen = []

    def stopping(_, shards):
        for shard in itertools.islice(shards, stop):
            seen.append((shard.file, shard.number))
            yield fakes.translate(shard)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=f"stopped after {stop} of 9 shards; the same"):
        run(stopping)

    def rest(_, shards):
        for shard in shards:
            assert (shard.file, shard.number) not in seen
            yield fakes.translate(shard)

    done, reported = run(rest)
    assert fakes.contents(tmp_path / "out") == fakes.EXPECTED
    assert len(reported) == 2
    assert done.ready == stop
    again, reported = run(lambda *_: pytest.fail("nothing is missing"))
    assert (again.ready, again.problems, len(reported)) == (9, 2, 2)


def test_a_stop_between_any_two_writes(run, tmp_path, monkeypatch):
    """Whatever has been written when the process is killed, a second call ends with the same files."""
    real = output_folder.write_atomically
    for writes in range(1, 13):  # the manifest, nine shards; two files with their records
        out, count = f"out-{writes}", itertools.count()

        def failing(path, write, count=count, writes=writes):
            if next(count) == writes:
                path.with_name(f".{path.name}.half.tmp").write_bytes(b"half")
                raise OSError(28, "No space left on device", str(path))
            real(path, write)

        monkeypatch.setattr(output_folder, "write_atomically", failing)
        with pytest.raises(OSError, match="No space left"):
            run(out=out)
        monkeypatch.setattr(output_folder, "write_atomically", real)
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


def test_a_file_that_was_removed_is_translated_again(run, tmp_path):
    run()
    (tmp_path / "out/c.txt").unlink()
    done, reported = run()
    assert fakes.contents(tmp_path / "out") == fakes.EXPECTED
    assert (done.ready, len(reported)) == (6, 2)


def test_two_processes_do_not_write_one_folder(run, inputs, tmp_path):
    opened = output_folder.OutputFolder.open(tmp_path / "out", inputs, fakes.SETTINGS)
    with opened, pytest.raises(TaskError, match=r"another process writes .*out"):
        run()
    run()
