"""`heed translate`."""

import shutil

import pytest

from heed.seq2seq.tokens.tokenizer import Tokenizer
from tests.cli.command import fails
from tests.seq2seq import tiny

pytestmark = pytest.mark.usefixtures("all_end")


def test_one_number_in_four_ways(heed, run_path):
    expected = heed("translate", run_path, "001234")[1]
    assert expected.count("\n") == 1
    for text in (["1 2 3 4"], ["1234"], ["1,234"], ["1", "2", "3", "4"]):
        assert heed("translate", run_path, *text) == (0, expected, "")


def test_lines_in_lines_out(heed, run_path):
    status, out, err = heed("translate", run_path, "--language", "de", stdin="1 2\n7\r\n999,999")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 3
    for words in (["--language", "de", run_path, "7"], [run_path, "7", "--language", "de"],
                  [run_path, "--language", "de", "7"]):  # fmt: skip
        assert heed("translate", *words) == (0, f"{lines[1]}\n", "")
    assert heed("translate", run_path, stdin="") == (0, "", "")


def test_a_bad_line_keeps_its_place(heed, run_path):
    status, out, err = heed("translate", run_path, stdin="1\n\nx\n3\n")
    one, three = (heed("translate", run_path, text)[1] for text in ("1", "3"))
    assert out == f"{one}\n\n{three}"
    assert status == 1
    assert err.startswith("heed: line 3: a number must be digits")
    assert err.count("\n") == 1
    assert heed("translate", run_path, stdin="1\n\n3\n") == (0, f"{one}\n{three}", "")


@pytest.mark.parametrize(
    ("option", "message"),
    [("--picture", "--picture needs the text"), ("--language=fr", "must be one of en, de")],
)
def test_what_all_lines_lack_is_one_error(heed, run_path, option, message):
    fails(heed("translate", run_path, option, stdin="1\n2\n3\n"), 2, message)


def test_a_damaged_newest_checkpoint_is_reported(heed, run_path, tmp_path):
    path = shutil.copytree(run_path, tmp_path / "copy")
    (path / "weights.npz").write_bytes(b"PK")
    problem = f"File is not a zip file; repair it with: heed train --resume {path}"
    fails(heed("translate", path, "5"), 1, f"weights.npz is damaged: {problem}")
    (path / "weights.npz").unlink()
    newest = path / "checkpoints" / "step-00000012.npz"
    newest.write_bytes(newest.read_bytes()[:-1])
    status, out, err = heed("translate", path, "5")
    assert status == 0
    assert out
    assert err.splitlines() == [
        f"heed: {newest} is damaged: File is not a zip file; step-00000009.npz takes its place",
        f"heed: {path} is not finished: using its checkpoint of step 9",
    ]


def test_a_picture_on_request(heed, run_path):
    status, out, err = heed("translate", run_path, "382764", "--picture")
    assert status == 0
    assert out.count("\n") == 1
    assert str(run_path / "attention.png") in err
    assert (run_path / "attention.png").exists()


def test_decoding_options_choose_the_translations(heed, run_path, tmp_path):
    status, one, err = heed("translate", run_path, "12")
    assert (status, err) == (0, "")
    for options in (["--beam-size", "1"], ["--temperature", "1", "--top-k", "1"]):
        assert heed("translate", run_path, "12", *options) == (0, one, "")
    drawn = ["--temperature", "5", "--seed", "3"]
    status, several, err = heed("translate", run_path, *drawn, stdin="12\n" * 9)
    assert (status, err) == (0, "")
    assert len(set(several.splitlines())) > 1
    assert heed("translate", run_path, *drawn, stdin="12\n" * 9) == (0, several, "")
    status, cut, _ = heed("translate", run_path, "12", "--max-length", "1")
    assert status == 0
    assert one.startswith(cut.strip())
    assert cut != one
    fails(heed("translate", run_path, "1", "--top-p", "0.5"), 2, "`top_p` is for sampling")


def test_translate_reads_and_writes_files(heed, run_path, tmp_path):
    (tmp_path / "in.txt").write_bytes("\ufeff1\r\n\nx\n\udcff\n22".encode(errors="surrogateescape"))
    _, one, _ = heed("translate", run_path, "1")
    _, two, _ = heed("translate", run_path, "22")
    files = ["--input", "in.txt", "--output", "out.txt"]
    status, out, err = heed("translate", run_path, *files, "--batch-size", "2")
    assert (status, out) == (1, "")
    assert err.splitlines()[0].startswith("heed: line 3: a number must be digits")
    assert err.splitlines()[1].startswith("heed: line 4: a number must be digits")
    assert (tmp_path / "out.txt").read_text() == f"{one}\n\n\n{two}"
    assert heed("translate", run_path, "1", "--output", "out.txt") == (0, "", "")
    assert (tmp_path / "out.txt").read_text() == one
    fails(heed("translate", run_path, "1", "--output", "no/out.txt"), 1, "no/out.txt: No such file")


def test_a_text_that_is_the_name_of_a_file(heed, run_path, tmp_path):
    """People expect the file to be translated."""
    (tmp_path / "12").write_text("3\n")
    status, out, err = heed("translate", run_path, "12")
    assert (status, out) == (0, heed("translate", run_path, "12", "--quiet")[1])
    assert err == "heed: this translates the text '12': --input 12 reads the file\n"
    (tmp_path / "a.txt").write_text("3\n")
    fails(heed("translate", run_path, "a.txt"), 1, "'a.txt'; --input a.txt reads the file")


@pytest.mark.parametrize("name", ["in.txt", "other/../in.txt", "link.txt"])
def test_the_file_that_is_read_is_not_written(heed, run_path, tmp_path, name):
    (tmp_path / "in.txt").write_text("1\n22\n")
    (tmp_path / "link.txt").symlink_to("in.txt")
    (tmp_path / "other").mkdir()
    done = heed("translate", run_path, "--input", "in.txt", "--output", name)
    fails(done, 2, f"--output must not be the file that is read: {name} would be empty first")
    assert (tmp_path / "in.txt").read_text() == "1\n22\n"


@pytest.mark.parametrize("options", [[], ["--scores"]])
def test_a_translation_is_one_line(heed, run_path, monkeypatch, options):
    """Tokens that stand for bytes may spell a line break."""
    monkeypatch.setattr(Tokenizer, "decode", lambda self, rows: ["a\nb\r\nc" for _ in rows])
    status, out, _ = heed("translate", run_path, *options, stdin="1\n22\n")
    assert status == 0
    assert [line.split("\t")[-1] for line in out.split("\n")] == ["a b  c", "a b  c", ""]


def test_several_translations_in_columns(heed, run_path):
    """As many lines for each line, whatever is found: its number, the score, the translation."""
    options = ["--beam-size", "3", "--n-best", "2", "--scores"]
    status, out, err = heed("translate", run_path, *options, stdin="1\n\nx\n22\n")
    rows = [line.split("\t") for line in out.splitlines()]
    assert (status, err.count("\n")) == (1, 1)
    assert [row[0] for row in rows] == ["1", "1", "2", "2", "3", "3", "4", "4"]
    assert rows[2:6] == [["2", "", ""]] * 2 + [["3", "", ""]] * 2
    for first, second in (rows[:2], rows[6:]):
        assert float(first[1]) >= float(second[1])
        assert first[2] != second[2]
    best = heed("translate", run_path, "--beam-size", "3", stdin="1\n22\n")[1].splitlines()
    assert [rows[0][2], rows[6][2]] == best
    assert heed("translate", run_path, "1", *options)[1].splitlines() == out.splitlines()[:2]
    status, scored, _ = heed("translate", run_path, "1", "--scores")
    assert scored.rstrip("\n").split("\t")[1] == heed("translate", run_path, "1")[1].rstrip("\n")
    assert float(scored.split("\t")[0]) < 0


def test_translations_with_a_prefix(heed, run_path):
    status, out, err = heed("translate", run_path, "--prefix", "one hundred", stdin="1\n\n2\n")
    assert (status, err) == (0, "")
    assert [line[:11] for line in out.splitlines()] == ["one hundred", "", "one hundred"]
    fails(heed("translate", run_path, "1", "--prefix", ""), 2, "a prefix must not be empty")
    fails(heed("translate", run_path, "1", "--prefix", "a" * 999), 2, "a prefix must have fewer")
    drawn = heed("translate", run_path, "1", "--prefix", "one", "--picture")
    fails(drawn, 2, "--picture draws a translation without a prefix")
    fails(heed("translate", run_path, "1", "--n-best", "2"), 2, "`n_best` must be at most")


def test_which_words_a_translation_comes_from(heed, run_path):
    """In a last column, word by word."""
    status, out, err = heed("translate", run_path, "--alignments", stdin="1 2 3\n\n7\n")
    rows = [line.split("\t") for line in out.splitlines()]
    assert (status, err, rows[1]) == (0, "", ["", ""])
    for row, digits in ((rows[0], 3), (rows[2], 1)):
        links = [[int(x) for x in link.split("-")] for link in row[1].split()]
        assert sorted(j for _, j in links) == [*range(len(row[0].split()))]
        assert all(0 <= i < digits for i, _ in links)
    assert heed("translate", run_path, "7", "--alignments")[1].splitlines() == out.splitlines()[2:]


@pytest.mark.slow
def test_runs_that_translate_together(heed, run_path, tmp_path):
    """A run with itself says the same; one of other tokens is refused."""
    alone = heed("translate", run_path, "--beam-size", "2", stdin="1\n22\n")
    words = ["--ensemble", run_path, "--beam-size", "2"]
    assert heed("translate", run_path, *words, stdin="1\n22\n") == alone
    other = tiny.start(tmp_path / "other", languages=("en",))
    refused = heed("translate", run_path, "1", "--ensemble", other.path)
    fails(refused, 1, "cannot translate together: their tokens differ")
    fails(heed("translate", run_path, "1", "--ensemble", "nowhere"), 1, "nowhere does not exist")
    packed = heed("translate", run_path, "1", "--ensemble", run_path, "--weights", "int8")
    fails(packed, 2, "Ensemble is neither a Transformer nor")
