"""`run.py` of every format reads and writes texts as `heed translate` does."""

import io
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from heed import cli
from heed.export import export
from heed.export.formats import FORMATS
from heed.export.runners import _run as runner
from heed.export.text_ops import text_ops
from heed.seq2seq import NumbersTask, Shipment, TaskError, TextTask, start_run
from heed.seq2seq.runs import shipping
from heed.seq2seq.runs.trained_model import make_model, write_trained
from tests.seq2seq import tiny
from tests.slow import slow

# Lines of people: names of special tokens, marks, invisible characters, other scripts, bytes that are no text.
ODD = (
    *("aa bb cc", "  aa   bb ", "", "   ", "aa unheard-of xyz bb", "xyz", "é aa", "e\u0301 aa"),
    *("\ufeffaa bb", "aa\tbb", "aa\rbb", "aa bb\r", "aa\r\nbb", "aa\u2028bb", "aa ▁▁ "),
    *("\u3000aa\u3000bb\xa0", "\x85aa\x1f", "aa </s> bb", "<s> aa <pad>", "<unk>", "<0x41> aa"),
    *("aa ▁ bb", "▁aa▁", "▁", "aa\0bb", "\u200b"),
    *("三二一", "สวัสดี", "می‌خواهم", "👩‍👩‍👧 aa", "aa " * 30, "\udcff\udcfe aa"),
)
RULES = {"form": "NFC", "spaces": "\t\r\n\u2028\u3000\xa0▁"}


def trained_elsewhere(path, targets, **options):
    """Return a SentencePiece model that others made."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(targets), model_writer=model, minloglevel=2, **options
    )
    path.write_bytes(model.getvalue())
    return path


KINDS = {
    "subword": {"vocabulary_size": 60},
    "word": {"unit": "word"},
    "character": {"unit": "character"},
    "bytes": {"vocab_size": 300, "byte_fallback": True, "hard_vocab_limit": False},
    "bpe-bytes": {"vocab_size": 300, "byte_fallback": True, "model_type": "bpe", "pad_id": 3},
    "spaces": {"vocab_size": 24, "remove_extra_whitespaces": False, "unk_surface": " <?> "},
}


def task_of(folder, kind):
    source, target = tiny.write_parallel_text(folder)
    options = dict(KINDS[kind])
    if "vocab_size" in options:
        texts = [*source.read_text("utf-8").splitlines(), *target.read_text("utf-8").splitlines()]
        model = trained_elsewhere(folder / "other.model", texts, **options)
        options = {"source_tokenizer": model, "vocabulary": "shared"}
    return TextTask.create(source, target, longest=24, **options)


def model_of(folder, task):
    """Return a model of `run.py` without programs: it reads and writes."""
    model = runner.Model.__new__(runner.Model)
    for name, data in task.files().items():
        (folder / name).write_bytes(data)
    decoding = {"pad": 0, "start": 1, "end": 2, "longest": 9}
    model.folder, model.programs = folder, {}
    model.manifest = {"tokens": shipping.describe_tokens(task), "decoding": decoding}
    return model


def read(task, line):
    """Return the ids that the command translates; None if it refuses the line, none for a blank one."""
    try:
        return task.encode(line) if line.strip() else []
    except TaskError:
        return None


def read_by_runner(model, line):
    try:
        return model.read(line)
    except runner.TextError:
        return None


def read_by_graph(ops, line):
    try:
        if ops.is_blank(tf.constant([line]))[0]:
            return []
        return ops.encode(tf.constant([line])).numpy()[0].tolist()
    except tf.errors.InvalidArgumentError:
        return None


@pytest.fixture(
    scope="module", params=["word", "character", "bytes", *slow(["subword", "bpe-bytes", "spaces"])]
)
def readers(request, tmp_path_factory):
    """Return a task, and its model and graph."""
    folder = tmp_path_factory.mktemp(request.param)
    task = task_of(folder, request.param)
    model = model_of(folder, task)
    return task, model, text_ops(model.manifest["tokens"])


def test_odd_lines_are_read_alike(readers):
    task, model, ops = readers
    rows = {}
    for line in ODD:
        ids = read(task, line)
        assert read_by_runner(model, line) == ids, line
        if ops is not None:
            as_bytes = line.encode("utf-8", "surrogateescape")
            wanted = None if "e\u0301" in line else ids  # a graph cannot normalise, and refuses
            assert read_by_graph(ops, as_bytes) == wanted, line
            rows |= {as_bytes: wanted} if wanted else {}
    assert None in [read(task, line) for line in ODD]
    if ops is not None:
        found = tf.function(ops.encode)(tf.constant(list(rows))).numpy()
        assert [row[row != 0].tolist() for row in found] == list(rows.values())


@given(
    st.text(
        st.sampled_from([*"ab c\t\r▁<>/s0x41é\u0301\u3000\u2028\ufeff\0", "一", "😀"]), max_size=12
    )
)
def test_any_line_is_read_alike(readers, line):
    task, model, _ = readers
    assert read_by_runner(model, line) == read(task, line)


def test_any_tokens_are_written_alike(readers):
    task, model, ops = readers
    size = task.target_vocabulary_size
    chance = np.random.default_rng(0)
    rows = chance.integers(2, size, (300, 9)).astype("int32")
    rows[:100] = chance.choice([*range(3, 12), size - 1], (100, 9))  # unknown tokens and bytes
    rows[:20, 4:] = 0
    wanted = task.decode(rows.tolist())
    assert [model.write(row) for row in rows] == wanted
    if ops is not None:
        assert [x.decode() for x in ops.decode(tf.constant(rows)).numpy()] == wanted


def test_normalised_texts_are_read_alike(readers):
    """The runner brings texts into the form of the run."""
    task, model, _ = readers
    rules = model.manifest["tokens"]["normalization"] or RULES
    tokens = {**model.manifest["tokens"], "normalization": rules}
    changed = runner.Model.__new__(runner.Model)
    changed.folder, changed.manifest = model.folder, {**model.manifest, "tokens": tokens}
    for line in ODD:
        plain = runner.normalize(line, rules)
        assert not set(plain) & set(rules["spaces"])
        ids = read(task, plain) if plain else [] if not line.strip() else None
        assert read_by_runner(changed, line) == ids, line


def test_numbers_are_read_alike(tmp_path):
    task = NumbersTask(("en",))
    model = model_of(tmp_path, task)
    ops = text_ops(model.manifest["tokens"])
    for line in (
        *("7", "0", "100000", "999,999", "1,234", "1 2 3", "\u30007\t1", "0070", "", " "),
        *("1,2", "1 ,234", "x", "1234567", "۷", "-1", "1.5"),
    ):
        ids = read(task, line)
        assert read_by_runner(model, line) == ids, line
        by_graph = read_by_graph(ops, line)
        assert (by_graph if not by_graph else [i for i in by_graph if i]) == ids, line
    rows = np.random.default_rng(0).integers(2, task.target_vocabulary_size, (100, 9))
    wanted = task.decode(rows.tolist())
    assert [model.write(row) for row in rows] == wanted
    assert [x.decode() for x in ops.decode(tf.constant(rows, tf.int32)).numpy()] == wanted


def finished_run(path, task):
    """Return a run with random weights, as its translations are not read by people: some end, some are cut."""
    keras.utils.set_random_seed(0)
    run = start_run(path, task, **{**tiny.TINY, "tie_embeddings": False})
    weights = [
        3 * np.random.default_rng(i).normal(size=x.shape).astype("float32")
        for i, x in enumerate(make_model(run).weights)
    ]
    write_trained(run, weights, {"step": 0})
    return run


def name_lines(notes):
    """Return the lines that are named on standard error, and whether they were cut."""
    found = re.findall(r"line (\d+): (the translation is cut at (\d+) tokens)?", notes)
    return [(int(number), int(length or 0)) for number, _, length in found]


@pytest.mark.parametrize(
    ("format", "kind"),
    [
        ("ctranslate2", "bytes"),
        *slow((f, k) for f in FORMATS for k in ("subword", "word", "character")),
    ],
)
def test_run_py_is_the_command(format, kind, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(shipping, "_SAMPLES", 2)
    run = finished_run(tmp_path / "run", task_of(tmp_path, kind))
    folder = export(Shipment(run), tmp_path / format, format=format).path
    given, lines = tmp_path / "lines.txt", ("\ufeffaa", *(x for x in ODD if "\n" not in x))
    given.write_bytes(b"".join(f"{x}\n".encode("utf-8", "surrogateescape") for x in lines))
    status = cli.main(["translate", str(run.path), "--input", str(given)])
    wanted, notes = capfd.readouterr()
    with given.open("rb") as file:
        process = [sys.executable, folder / "run.py"]
        found = subprocess.run(process, stdin=file, capture_output=True, check=False)
    assert found.stdout.decode() == wanted
    assert (found.returncode, status) == (0, 1)
    assert wanted.count("\n") == len(lines)
    assert name_lines(found.stderr.decode()) == sorted(name_lines(notes))
    lengths = {length for _, length in name_lines(notes)}
    assert lengths == {0, run.task().longest_target}, "some lines are refused, some are cut"
    assert len(name_lines(notes)) < len(lines), "others end"
