"""Translations in pieces, which join to the text of the whole."""

import io
import random
from contextlib import closing

import pytest

from heed.seq2seq import DecodingOptions, TaskError, Translator
from heed.seq2seq.tokens.tokenizer import END_ID, Tokenizer
from tests.slow import slow


def pieces_of(stream):
    """Return the pieces, and the value of the generator."""
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return pieces, end.value


def test_pieces_join_to_the_translation(translator):
    for line, language, prefix in (("1 2 3 4", "de", None), ("7", None, "one")):
        options = {"language": language, "prefix": prefix, "alignments": True}
        ((whole,),) = translator.translations([line], **options)
        pieces, value = pieces_of(translator.stream(line, **options))
        assert "".join(pieces) == whole.text == value.text
        assert all(pieces)
        assert len(pieces) > 1
        assert str(value.alignment) == str(whole.alignment)
        assert [i for i in whole.ids if i] == value.ids


def test_samples_have_the_seeds_of_the_batches(translator):
    options = DecodingOptions(temperature=2.0, seed=3, scores=True)
    for batch, line in enumerate(("12", "34")):
        translator.continue_seeds(batch)
        ((whole,),) = translator.translations([line], options=options)
        translator.continue_seeds(batch)
        assert "".join(translator.stream(line, options=options)) == whole.text


def test_a_reader_may_stop(translator):
    with closing(translator.stream("1 2 3 4")) as pieces:
        next(pieces)
    with pytest.raises(StopIteration):
        next(pieces)


def test_what_is_refused_is_refused_at_once(translator):
    for options, text in (
        ({"options": DecodingOptions(beam_size=4)}, "no beam search.*beam_size=4"),
        ({"options": DecodingOptions(temperature=1.0, n_best=2)}, "n_best=2"),
        ({"language": "fi"}, "must be one of en, de"),
        ({"prefix": "one " * 200}, "fewer than the"),
    ):
        with pytest.raises(TaskError, match=text):
            translator.stream("12", **options)
    with pytest.raises(TaskError, match="must be digits"):
        translator.stream("x")


class Written:
    """A task whose texts are those of a tokenizer, and a translator of it that writes given ids."""

    title = "these texts"

    def __init__(self, tokenizer):
        self.decode = tokenizer.decode

    def pieces(self, ids):
        made = Translator.__new__(Translator)
        made.task = self
        return pieces_of(made._write_pieces([], (), (i for i in ids), False))[0]


def make_tokenizers():
    lines = ["the cat sat on the mat", "  a  b ", "der Hund, die Katze!", "the the a"] * 3
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=320, model_type="bpe",
        byte_fallback=True, pad_id=0, bos_id=1, eos_id=2, unk_id=3, hard_vocab_limit=False,
        minloglevel=2, num_threads=1,
    )  # fmt: skip
    lines.append("ありがとう 猫 は")  # of bytes, in the last tokenizer
    made = [Tokenizer.train(lines, 60, unit) for unit in ("subword", "word", "character")]
    return [*made, Tokenizer(model.getvalue())]


@pytest.mark.parametrize("seed", [0, *slow(range(1, 20))])
def test_any_ids_of_any_tokenizer(seed):
    """Unknown words, spaces at the end, and characters of several bytes, whole and in parts."""
    chance = random.Random(seed)
    for tokenizer in make_tokenizers():
        task = Written(tokenizer)
        for _ in range(40):
            count = chance.randint(0, 12)
            ids = [chance.randrange(3, tokenizer.vocabulary_size) for _ in range(count)]
            for row in (ids, [*ids, END_ID]):
                pieces = task.pieces(row)
                assert "".join(pieces) == tokenizer.decode([row])[0], row
                assert all(pieces)
        text = "ありがとう 猫"
        encoded = tokenizer.encode([text])[0]
        assert "".join(task.pieces(encoded)) == tokenizer.decode([encoded])[0]


def test_a_task_that_takes_text_back_is_named():
    task = Written(Tokenizer.train(["a b"], 20))
    task.decode = lambda rows: [" ".join(map(str, sorted(row))) for row in rows]
    with pytest.raises(TaskError, match=r"`decode` .*prefix-stable"):
        task.pieces([5, 4])


def test_warming_up_leaves_the_seeds(translator):
    before = translator._batches
    translator.warm_up()
    assert translator._batches == before
