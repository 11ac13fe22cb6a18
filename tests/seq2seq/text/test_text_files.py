"""Files of text by what they hold, whatever their names; and pipes."""

import gzip
import os
import threading

import pytest

from heed.errors import TaskError
from heed.seq2seq.text._line_file import LineFile
from heed.seq2seq.text.text_files import open_text, read_text

PACKED = gzip.compress(b"one\ntwo\n", mtime=0)  # part of the name of a test


@pytest.mark.parametrize("name", ["a.txt", "a.gz"])
@pytest.mark.parametrize("data", [b"one\ntwo\n", PACKED, b"", b"\x1f", b"B\n", b"\xff\n"])
def test_the_bytes_decide(name, data, tmp_path):
    path = tmp_path / name
    path.write_bytes(data)
    wanted = b"one\ntwo\n" if data == PACKED else data
    with open_text(path) as file:
        assert file.read() == wanted
    with os.fdopen(pipe_of(data), "rb") as pipe:
        assert read_text(pipe, "a pipe").read() == wanted


def pipe_of(*parts):
    """Return the reading end of a pipe into which a thread writes."""
    read, write = os.pipe()

    def run():
        for part in parts:
            os.write(write, part)
        os.close(write)

    threading.Thread(target=run).start()
    return read


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_pipe_may_come_in_pieces(cut):
    with os.fdopen(pipe_of(PACKED[:cut], PACKED[cut:]), "rb") as pipe:
        assert list(read_text(pipe, "a pipe")) == [b"one\n", b"two\n"]


def test_a_program_may_wait_for_the_answer_to_a_line():
    read, write = os.pipe()
    with os.fdopen(read, "rb") as pipe:
        os.write(write, b"\n")
        lines = read_text(pipe, "a pipe")
        assert lines.readline() == b"\n"
        os.write(write, b"2\n")
        assert lines.readline() == b"2\n"
        os.close(write)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"BZh91AY&SY", "compressed by bzip2"),
        (b"\xfd7zXZ\0", "compressed by xz"),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
        (b"PK\x03\x04", "a zip archive"),
        ("\ufeffx".encode("utf-16-le"), "UTF-16: convert"),
        ("\ufeffx".encode("utf-16-be"), "UTF-16: convert"),
    ],
)
def test_what_is_no_text_is_refused(data, what, tmp_path):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(TaskError, match=f"a is {what}"), open_text(tmp_path / "a"):
        pass


def test_lines_of_a_pipe_are_read_in_any_order(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(PACKED))
    writer.start()
    file = LineFile(tmp_path / "pipe")
    writer.join()
    assert list(file.blocks()) == [["one", "two"]]
    assert file.lines([1, 0]) == ["two", "one"]
