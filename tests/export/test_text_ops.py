"""Graphs tokenize and detokenize texts as the task does."""

import numpy as np
import pytest
import tensorflow as tf

from heed.export.text_ops import text_ops
from heed.seq2seq import NumbersTask, TextTask
from heed.seq2seq.runs import shipping
from tests.seq2seq import tiny

TEXTS = (
    *(
        "aa bb cc",
        "  aa   bb ",
        "aa unheard-of xyz bb",
        "xyz",
        "cc",
        "é aa",
        "aa  bb  aa",
        "\ufeffaa",
    ),
    *(
        "aa\tbb",
        "aa\r\nbb",
        "\u3000aa\u3000bb\xa0",
        "\u2028aa\x85",
        "aa </s> bb",
        "<s><pad>",
        "<unk>",
        "<0x41>",
    ),
    *("aa ▁ bb", "▁aa", "aa▁", "aa ▁▁ ", "aa\0bb", "สวัสดี", "😀\u200d😀", "\x1faa"),
)


def tokens_of(task):
    """Return the tokens of a shipment, for a task without a run."""
    unit, obstacle = task.reads
    assert (unit in ("digits", "word", "character")) == (obstacle is None)
    return shipping.describe_tokens(task)


def text_task(tmp_path, **options):
    source, target = tiny.write_parallel_text(tmp_path)
    return TextTask.create(source=source, target=target, **{"vocabulary_size": 60, **options})


@pytest.mark.parametrize("unit", ["word", "character"])
def test_texts(unit, tmp_path):
    task = text_task(tmp_path, unit=unit)
    ops = text_ops(tokens_of(task))
    lines = [*TEXTS, *(item.text for item in task.evaluation_items()[:20])]
    found = tf.function(ops.encode)(tf.constant(lines)).numpy()
    for ids, line in zip(found, lines, strict=True):
        assert ids[ids != 0].tolist() == task.encode(line), line
    written = np.random.default_rng(0).integers(2, task.target_vocabulary_size, (30, 9))
    written = written.astype("int32")
    written[0, 3:] = 0
    said = [x.decode() for x in tf.function(ops.decode)(tf.constant(written)).numpy()]
    assert said == task.decode(written.tolist())
    assert ops.is_blank(tf.constant(["", "  ", "\u3000\n", "aa"])).numpy().tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("unit", ["word", "character"])
def test_texts_that_the_command_refuses(unit, tmp_path):
    task = text_task(tmp_path, unit=unit, longest=4)
    ops = text_ops(tokens_of(task))
    refused = {"aa " * 9: "of at most 4 tokens", b"aa \xff": "Invalid formatting"}
    if unit == "word":
        refused["▁"] = "letters that the tokenizer keeps"
    for line, why in refused.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=why):
            ops.encode(tf.constant(["aa", line]))


def test_numbers():
    task = NumbersTask(("de",))
    ops = text_ops(tokens_of(task))
    lines = [
        "0",
        "7",
        "10",
        " 1 2 3 4",
        "1,234",
        "0070",
        "999,999",
        "100000",
        "\u30007\xa0",
        "1\t2",
    ]
    found = tf.function(ops.encode)(tf.constant(lines)).numpy()
    for ids, line in zip(found, lines, strict=True):
        assert ids[ids != 0].tolist() == task.encode(line), line
    ids = task.subwords.encode(["einhundert"])
    assert ops.decode(tf.constant(ids)).numpy().tolist() == [b"einhundert"]
    ids = ops.encode(tf.constant(["", "12"])).numpy()
    assert ids[1, :3].tolist() == task.encode("12"), "a blank text beside it changes nothing"
    for line in ("x", "1234567", "-1", "1.5", "1,2", "1 ,234", "۷"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="from 0 to 999,999 in digits"):
            ops.encode(tf.constant([line]))


def test_subwords_and_several_languages_stay_outside(tmp_path):
    task = text_task(tmp_path)
    reads, reason = task.reads
    assert reads == "subword"
    assert "TensorFlow Text" in reason
    assert text_ops({"reads": reads}) is None
    task = text_task(tmp_path, unit="word", target_language="de")
    reads, reason = task.reads
    assert text_ops({"reads": reads}) is None
    assert "which language" in reason
