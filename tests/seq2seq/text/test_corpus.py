"""Files of parallel text: every format, and the reports about bad lines."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import TaskError
from heed.seq2seq.text.corpus import Corpus
from heed.seq2seq.text.corpus_check import check_corpus
from heed.seq2seq.text.pair_store import PairStore

# Text of one line that keeps its outer letters when spaces are taken off, and the mark that may begin a file.
_LETTERS = st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="\ufeff")
sides = st.text(_LETTERS, max_size=20).map(str.strip)
texts = st.lists(st.tuples(sides, sides), min_size=1, max_size=12)
READERS = (lambda corpus: list(corpus.pairs()), lambda corpus: PairStore([corpus]))


def write(folder, kind, pairs):
    """Return a corpus of that kind; its name."""
    if kind.startswith("two"):
        ending = kind.removeprefix("two")
        made = [folder / f"a{ending}", folder / f"b{ending}"]
        contents = ["".join(f"{side}\n" for side in one) for one in zip(*pairs, strict=True)]
    else:
        made = [folder / f"pairs{kind}"]
        lines = [
            json.dumps({"source": s, "target": t, "more": 1}) if "jsonl" in kind else f"{s}\t{t}"
            for s, t in pairs
        ]
        contents = ["".join(f"{line}\n" for line in lines)]
    for path, text in zip(made, contents, strict=True):
        data = text.encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return Corpus(*made)


@pytest.mark.parametrize("kind", ["two.txt", "two.gz", ".tsv", ".TSV.gz", ".jsonl", ".jsonl.gz"])
@given(pairs=texts)
def test_every_format_gives_back_what_was_written(kind, pairs, tmp_path_factory):
    corpus = write(tmp_path_factory.mktemp("corpus"), kind, pairs)
    assert list(corpus.pairs()) == pairs


def test_a_byte_order_mark_windows_line_ends_and_other_separators(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\u2028two\r\nthree\x0cfour\r\n\r\n \ufefflast".encode())
    expected = ["one\u2028two", "three\x0cfour", "", "\ufefflast"]
    assert [source for source, _ in Corpus(path, path).pairs()] == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"x\ty\nx\ty\tz\n", r"a\.tsv, line 2: two columns.*not 3"),
        ("a.tsv", b"x y\n", "line 1: two columns.*not 1"),
        ("a.tsv", b"x\ty\n\xff\ty\n", r"line 2: not UTF-8 text"),
        ("a.jsonl", b'{"source": "x", "target": "y"}\n{"source": "x"\n', "line 2: not JSON"),
        ("a.jsonl", b'{"source": "x", "target": 3}\n', 'an object with the strings "source"'),
        ("a.jsonl", b'["x", "y"]\n', "line 1: an object"),
        ("a.jsonl", b'{"source": "x\\ud83d", "target": "y"}\n', "line 1: not UTF-8 text"),
        ("a.tsv", b"BZh91AY&SY", r"a\.tsv is compressed by bzip2: unpack it"),
        ("a.tsv.gz", gzip.compress(b"x\ty\n" * 99, mtime=0)[:-9], r"cannot read .*a\.tsv\.gz"),
    ],
)
def test_a_bad_line_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    for read in READERS:
        with pytest.raises(TaskError, match=message):
            read(Corpus(tmp_path / name))


def test_which_files_go_together(tmp_path):
    (tmp_path / "short").write_text("a\nb\n")
    (tmp_path / "latin").write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(TaskError, match=r"line 2: not UTF-8 text in .*latin"):
        list(Corpus(tmp_path / "short", tmp_path / "latin").pairs())
    with pytest.raises(TaskError, match=r"a\.txt has one side: .*\.tsv, \.jsonl"):
        Corpus(tmp_path / "a.txt")
    with pytest.raises(TaskError, match=r"holds both sides: leave out .*b"):
        Corpus(tmp_path / "a.tsv.gz", tmp_path / "b")
    for path in (tmp_path / "missing.tsv", tmp_path):
        for read in READERS:
            with pytest.raises(TaskError, match=f"cannot read {path}"):
                read(Corpus(path, None if path.suffix else path))


def test_what_a_check_finds(tmp_path):
    lines = [
        b"one\teins",
        b"\tzwei",
        b"three\tdrei",
        b"one\teins",
        b"one\tein",
        b"same\tsame",
        b"four",
        b"\xff\t\xff",
        b"bell\x07\tGlocke",
        b"y" * 31 + b"\tja, ja",
        b"x" * 501 + b"\t" + b"z" * 400,
        "of course\tselbstverständlich, das tun wir".encode(),
        "yes\tselbstverständlich".encode(),
        "می\u200cروم\t👩\u200d👩\u200d👧 \u00ad\ue000".encode(),
        "a\u2581b\tc".encode(),
        b"\0x\tx",
        b"",
    ]
    path = tmp_path / "a.tsv"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    found = check_corpus(Corpus(path))
    assert found.stops
    assert (found.lines, found.pairs) == (17, 12)
    told = {finding.text.split(",")[0]: finding.numbers for finding in found.findings}
    assert told == {
        "with an empty side": [2, 17],
        "repeated on both sides": [4],
        "with a repeated source and another translation": [5],
        "with the same text on both sides": [6],
        "two columns with a tab between them are expected": [7],
        "not UTF-8 text": [8],
        "with a control character": [9, 16],
        "with U+2581": [15],
        "with one side more than 3 times as long as expected of the other": [10, 12],
        "with more than 500 letters": [11],
        "different sentences: training needs at least 20": [],
    }
    report = list(found.report())
    assert report[0] == "17 lines, 12 different pairs"
    assert "1 not UTF-8 text: line 8" in report
    assert report[-1] == "11 different sentences: training needs at least 20"


def test_lengths_are_uneven_beside_those_of_other_pairs(tmp_path):
    """Chinese needs a third of the letters of English, whichever side it is on."""
    pairs = [
        (f"Our neighbour bought vegetables on day {n}.", f"邻居第{n}天买了蔬菜。")
        for n in range(40)
    ]
    pairs[7] = (pairs[7][0], pairs[7][0] + " and more and more and more")
    pairs[9] = (pairs[9][0] * 3, "是。")
    for number, sides in enumerate((pairs, [pair[::-1] for pair in pairs])):
        path = tmp_path / f"{number}.tsv"
        path.write_text("".join(f"{source}\t{target}\n" for source, target in sides))
        (finding,) = check_corpus(Corpus(path)).findings
        assert finding.numbers == [8, 10]
        assert not finding.stops


def test_a_check_names_the_first_lines_and_how_many_there_are(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n" * 1200)
    found = check_corpus(Corpus(path))
    assert found.stops
    assert list(map(str, found.findings)) == [
        "1,199 repeated on both sides: line 2, 3, 4, 5, 6, ...",
        "1 different sentences: training needs at least 20",
    ]
    path.write_text("".join(f"a{n}\tb{n}\n" for n in range(20)))
    found = check_corpus(Corpus(path))
    assert not found.stops
    assert list(found.report())[-1] == "no problems"
