"""What graphs cannot read: refused texts, and tasks that stay outside; `test_runners_texts` has what they can read."""

import pytest
import tensorflow as tf

from heed.export.text_ops import text_ops
from heed.seq2seq import NumbersTask, TextTask
from heed.seq2seq.runs import shipping
from tests.seq2seq import tiny
from tests.slow import slow


def text_task(tmp_path, **options):
    source, target = tiny.write_parallel_text(tmp_path)
    return TextTask.create(source=source, target=target, **{"vocabulary_size": 60, **options})


@pytest.mark.parametrize("unit", ["word", *slow(["character"])])
def test_texts_that_the_command_refuses(unit, tmp_path):
    ops = text_ops(shipping.describe_tokens(text_task(tmp_path, unit=unit, longest=4)))
    refused = {"aa " * 9: "of at most 4 tokens", b"aa \xff": "Invalid formatting"}
    if unit == "word":
        refused["▁"] = "letters that the tokenizer keeps"
    for line, why in refused.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=why):
            ops.encode(tf.constant(["aa", line]))


def test_numbers_that_are_refused():
    task = NumbersTask(("en",))
    ops = text_ops(shipping.describe_tokens(task))
    ids = tf.function(ops.encode)(tf.constant(["", "12"])).numpy()
    assert ids[1, :3].tolist() == task.encode("12"), "a blank text beside it changes nothing"
    with pytest.raises(tf.errors.InvalidArgumentError, match="from 0 to 999,999 in digits"):
        ops.encode(tf.constant(["1", "x"]))


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
