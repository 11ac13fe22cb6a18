"""Units of tokens, shared and separate vocabularies, and existing tokenizer models."""

import io

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from heed.seq2seq import TaskError, TextTask
from heed.seq2seq.tokens.tokenizer import END_ID, UNKNOWN_ID, Tokenizer
from tests.seq2seq.tasks.test_text_task import pairs_file, reloaded

WORDS = "ab abc cab bac a b c é abca ca aa bb cc abcabc fi".split()
LINES = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 6)) for i in range(1, 90)]


def made(**settings):
    """Return a model by sentencepiece with its usual settings, which are not heed's, but for those given."""
    model = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 28, **settings}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, minloglevel=2, num_threads=1, **settings
    )
    return model.getvalue()


IDENTITY = {"normalization_rule_name": "identity"}
SETTINGS = {
    "unigram": {"model_type": "unigram", "vocab_size": 18},
    "bpe, nmt_nfkc": {},
    "bpe, by word": IDENTITY,
    "across words": {**IDENTITY, "vocab_size": 40, "split_by_whitespace": False},
    "bytes": {"vocab_size": 280, "byte_fallback": True},
    "bytes by word": {**IDENTITY, "vocab_size": 280, "byte_fallback": True},
    "other ids": {
        "model_type": "unigram", "vocab_size": 18, "unk_id": 7, "bos_id": -1, "eos_id": 0, "pad_id": 5
    },
    "no ids": {"bos_id": -1, "eos_id": -1},
    "symbols": {"vocab_size": 32, "user_defined_symbols": ["<s1>", "a b"]},
    "suffix": {**IDENTITY, "treat_whitespace_as_suffix": True},
    "spaces": {**IDENTITY, "remove_extra_whitespaces": False},
    "no first space": {**IDENTITY, "add_dummy_prefix": False},
    "characters": {"model_type": "char", "vocab_size": 12},
    "words": {"model_type": "word", "vocab_size": 14},
}  # fmt: skip
OF_OTHERS = {kind: made(**settings) for kind, settings in SETTINGS.items()}
OWN = {unit: Tokenizer.train(LINES, 40, unit) for unit in ("subword", "word", "character")}
TEXTS = st.lists(
    st.text(st.sampled_from("abc  \t▁éﬁ\u3000\u200b\x00😀xyz<s1>"), max_size=20), max_size=4
)


@pytest.mark.parametrize("kind", OF_OTHERS)
@given(texts=TEXTS)
def test_models_of_others_mean_what_the_library_says(kind, texts):
    """Each of its ids has one of ours, the special ones are ours, and text comes back as from the library."""
    theirs = sentencepiece.SentencePieceProcessor(model_proto=OF_OTHERS[kind])
    tokenizer = Tokenizer(OF_OTHERS[kind])
    rows = tokenizer.encode(texts)
    for text, row in zip(texts, rows, strict=True):
        assert row[-1] == END_ID
        assert all(UNKNOWN_ID <= i < tokenizer.vocabulary_size for i in row[:-1])
        wanted = theirs.encode(text)
        assert tokenizer.pieces(row) == [
            "▁<unk>" if kind == "words" and i == theirs.unk_id() else theirs.id_to_piece(i)
            for i in wanted
        ]
        assert [i == UNKNOWN_ID for i in row[:-1]] == [i == theirs.unk_id() for i in wanted]
        decoded = theirs.decode(wanted)
        assert tokenizer.decode([row]) == [decoded.strip(" ") if kind == "words" else decoded]
    assert tokenizer.counts(texts).tolist() == list(map(len, rows))


def test_every_piece_has_an_id_of_its_own():
    for model in OF_OTHERS.values():
        theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
        special = {theirs.pad_id(), theirs.bos_id(), theirs.eos_id(), theirs.unk_id()} - {-1}
        pieces = [theirs.id_to_piece(i) for i in range(theirs.get_piece_size()) if i not in special]
        tokenizer = Tokenizer(model)
        assert tokenizer.pieces(range(4, tokenizer.vocabulary_size)) == pieces


def test_which_models_are_asked_word_by_word():
    """It is quicker, and right for few."""
    assert {kind for kind, model in OF_OTHERS.items() if Tokenizer(model).splits_at_spaces} == {
        "bpe, by word", "bytes by word",
    }  # fmt: skip
    assert all(tokenizer.splits_at_spaces for tokenizer in OWN.values())


@pytest.mark.parametrize("unit", ["subword", "character"])
@given(texts=TEXTS)
def test_own_models_by_word_as_by_sentence(unit, texts):
    tokenizer = OWN[unit]
    theirs = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    wanted = [[*theirs.encode(text), END_ID] for text in texts]
    assert tokenizer.encode(texts) == wanted
    assert tokenizer.counts(texts).tolist() == list(map(len, wanted))


@given(words=st.lists(st.sampled_from([*WORDS, "x", "yz", "▁", "a▁x", "\u3000", "⁇"]), max_size=9))
def test_a_word_is_a_token_and_an_unknown_one_is_one_too(words):
    text = " ".join(words)
    alone = [word for word in text.replace("▁", " ").split(" ") if word]
    (row,) = OWN["word"].encode([text])
    known = [word in WORDS for word in alone]
    assert [i != UNKNOWN_ID for i in row[:-1]] == known
    said = " ".join(w if k else "⁇" for w, k in zip(alone, known, strict=True))
    assert OWN["word"].decode([row]) == [said]
    numbers, found = OWN["word"].words(row)
    assert numbers == [*range(len(alone)), None]
    assert len(found) == len(alone)


def test_words_that_come_once_are_unknown_and_the_most_frequent_are_kept():
    tokenizer = Tokenizer.train(["b a a c", "a b", "a rare"], 100, "word")
    assert tokenizer.pieces(range(4, tokenizer.vocabulary_size)) == ["▁a", "▁b"]
    tokenizer = Tokenizer.train(["b a a c", "a b", "a rare"], 5, "word")
    assert tokenizer.pieces([4]) == ["▁a"]
    with pytest.raises(TaskError, match="some come more than once"):
        Tokenizer.train(["a b", "c d"], 100, "word")


def test_characters():
    tokenizer = Tokenizer.train(["aab", "aac"] * 3, 7, "character")
    assert set(tokenizer.pieces(range(4, 7))) < {"▁", "a", "b", "c"}


@pytest.mark.parametrize("unit", ["word", "character"])
def test_a_task_of_other_units(unit, tmp_path):
    corpus = pairs_file(tmp_path / "a.tsv", [n % 50 for n in range(100)])
    task = reloaded(TextTask.create(corpus, unit=unit))
    ids = task.encode("wort 3 und mehr")
    assert len(ids) == (5 if unit == "word" else 17)
    assert task.source_words(ids)[1] == ["wort", "3", "und", "mehr"]
    assert task.encode_prefix("word 3")
    with pytest.raises(TaskError, match=f"a prefix must be of {unit}s"):
        task.encode_prefix("☃")
    assert task.to_config()["longest"] == (128 if unit == "word" else 512)


def test_a_shared_vocabulary_is_one_model(tmp_path):
    corpus = pairs_file(tmp_path / "a.tsv", range(100))
    task = reloaded(TextTask.create(corpus, vocabulary_size=60, vocabulary="shared"))
    assert task.files()["source.model"] == task.files()["target.model"]
    assert task.shares_vocabulary
    assert task.source_vocabulary_size == task.target_vocabulary_size
    for text in ("wort 17 und mehr", "word 17 and more"):  # both sides taught it
        assert task.subwords.decode([task.encode(text)]) == [text]
        assert UNKNOWN_ID not in task.encode(text)
    assert not TextTask.create(corpus, vocabulary_size=60).shares_vocabulary


def test_given_tokenizers_are_used_as_they_are(tmp_path):
    corpus = pairs_file(tmp_path / "a.tsv", range(100))
    paths = [tmp_path / "s.model", tmp_path / "t.model"]
    for path, kind in zip(paths, ("unigram", "bytes"), strict=True):
        path.write_bytes(OF_OTHERS[kind])
    task = TextTask.create(corpus, source_tokenizer=paths[0], target_tokenizer=paths[1])
    for path in paths:
        path.unlink()  # the run holds them
    task = reloaded(task)
    assert task.files()["source.model"] == OF_OTHERS["unigram"]
    assert task.files()["target.model"] == OF_OTHERS["bytes"]
    assert task.decode(list(task.training_batch(0, 0, 4).target))[0].startswith("word ")
    with pytest.raises(TaskError, match="letters that the tokenizer keeps"):
        task.encode("\u200b")


def shared(name):
    return {"source_tokenizer": name, "vocabulary": "shared"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"vocabulary": "both"}, "`vocabulary` must be one of 'separate', 'shared'. Received: "),
        ({"unit": "byte"}, "`unit` must be one of 'subword', 'word', 'character'. Received: unit="),
        ({"source_tokenizer": "good"}, "`source_tokenizer` needs a `target_tokenizer` too"),
        ({"target_tokenizer": "good"}, "`target_tokenizer` needs a `source_tokenizer` too"),
        ({"source_tokenizer": "good", "unit": "word"}, "`unit` is that of the given tokenizer"),
        ({"source_tokenizer": "good", "vocabulary_size": 9}, "`vocabulary_size` is that of the"),
        ({**shared("good"), "target_tokenizer": "other"}, "a shared vocabulary has one tokenizer"),
        (shared("nope"), "cannot read nope: No such file"),
        (shared("."), "cannot read .: Is a directory"),
        (shared("empty"), "empty: the tokenizer cannot be read: it is empty"),
        (shared("short"), "short: the tokenizer cannot be read: it is no SentencePiece model, or"),
        (shared("text"), "text: the tokenizer cannot be read: it is no SentencePiece model, or"),
    ],
)
def test_vocabularies_that_do_not_serve(options, problem, tmp_path, monkeypatch):
    """Errors come before the text is read."""
    monkeypatch.chdir(tmp_path)
    model = OF_OTHERS["unigram"]
    contents = {"good": model, "other": OF_OTHERS["bytes"], "empty": b"", "short": model[:-9]}
    for name, data in {**contents, "text": b"word 4\n"}.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(TaskError) as found:
        TextTask.create("no-such-text.tsv", **options)
    assert problem in str(found.value)
    assert "\n" not in str(found.value)


@given(st.data())
def test_damaged_models_are_refused_or_work(data):
    model = bytearray(OF_OTHERS["bpe, by word"])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(model) - 1))
        model[place] = data.draw(st.integers(0, 255))
    try:
        tokenizer = Tokenizer(bytes(model[: data.draw(st.integers(0, len(model)))]))
    except TaskError:
        return
    (row,) = tokenizer.encode(["abc xyz"])
    assert all(0 <= i < tokenizer.vocabulary_size for i in row)
    tokenizer.pieces(row)
