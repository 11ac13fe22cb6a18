"""Alignments that guide the attention while a model is trained: read, spread over tokens, and learned."""

import gzip

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from heed.models import RecurrentTranslator, RecurrentTranslatorConfig, Transformer
from heed.seq2seq import TaskError, TextTask, Translator, start_run, train
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.tasks.task import Batch
from heed.seq2seq.text.corpus import Corpus
from heed.seq2seq.text.corpus_check import check_corpus
from heed.seq2seq.text.pair_store import PairStore
from heed.seq2seq.text.word_links import read_links, spread
from heed.seq2seq.training._step import TrainingStep
from heed.seq2seq.translating.alignment import align
from tests.seq2seq.training.test_step import CONFIG, assert_same_weights, batch
from tests.slow import slow

links = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=9)


def text_of(pairs):
    return " ".join(f"{i}-{j}" for i, j in pairs)


@given(links)
def test_links_are_read_as_they_were_written(pairs):
    assert read_links(text_of(pairs), "a b  c d e", "v w x y") == pairs


def test_only_spaces_part_words():
    """So that a word may hold the space of "10 000", at which no line is broken."""
    assert read_links("1-0", "10\xa0000 cats", "chats") == [(1, 0)]
    with pytest.raises(ValueError, match="of 2 and 1 words"):
        read_links("2-0", "10\xa0000 cats", "chats")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0-0 1", "two numbers with a hyphen between them. Received: 1"),
        ("0:0", "Received: 0:0"),
        ("-1-0", "Received: -1-0"),
        ("0-0-0", "Received: 0-0-0"),
        ("2-0", "i-j for word i of .* counted from 0. Received: 2-0, of 2 and 3 words"),
        ("1-3", "Received: 1-3, of 2 and 3 words"),
    ],
)
def test_what_is_no_link(line, message):
    with pytest.raises(ValueError, match=message):
        read_links(line, "one two", "un deux trois")


@given(links, st.data())
def test_each_token_is_linked_to_all_tokens_of_the_words_it_belongs_to(pairs, data):
    source, target = (
        data.draw(st.lists(st.one_of(st.none(), st.integers(0, most)), min_size=1, max_size=7))
        for most in (4, 3)
    )
    source, target = [*source, *range(5)], [*target, *range(4)]
    found = spread(pairs, source, target)
    for t, j in enumerate(target):
        own = [s for s, i in enumerate(source) if i is not None and (i, j) in pairs]
        expected = np.zeros(len(source))
        expected[own] = 1 / max(1, len(own))
        np.testing.assert_allclose(found[t], expected, rtol=1e-6)


# Files


def corpus_of(folder, lines, name="a.align", texts=("a b c", "x y")):
    """Return a corpus of so many equal pairs; of an empty line of the alignment both sides are there too."""
    for path, text in zip(("a.src", "a.tgt"), texts, strict=True):
        (folder / path).write_text(f"{text}\n" * len(lines))
    data = "".join(f"{line}\n" for line in lines).encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return Corpus(folder / "a.src", folder / "a.tgt", folder / name)


@pytest.mark.parametrize("name", ["a.align", "a.align.gz"])
def test_lines_of_the_alignment_go_with_their_pairs(tmp_path, name):
    corpus = corpus_of(tmp_path, ["0-0", "", "2-1 1-0", "1-1\r"], name)
    (tmp_path / "a.src").write_text("a b c\na b\n\na b\n")
    (tmp_path / "b.tsv").write_text("a\tb\n")
    store = PairStore([corpus, Corpus(tmp_path / "b.tsv")])
    assert len(store) == 4  # of the third line a side is empty
    found = [line.strip() for line in store.alignments([3, 2, 0, 1])]
    assert found == ["", "1-1", "0-0", ""]
    assert store.pairs([3, 2]) == [("a", "b"), ("a b", "x y")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0-0", "0-0 1", "0-0"], r"line 2: .*a\.align: a link must be two numbers.*Received: 1$"),
        (["0-0", "0-0", "3-0"], r"line 3: .*a\.align: a link .*Received: 3-0, of 3 and 2 words"),
    ],
)
def test_a_bad_line_is_named(tmp_path, lines, message):
    with pytest.raises(TaskError, match=message):
        PairStore([corpus_of(tmp_path, lines)])


@pytest.mark.parametrize(("lines", "missing"), [(4, "a.align"), (6, "a.src")])
def test_an_alignment_of_another_number_of_lines(tmp_path, lines, missing):
    corpus = corpus_of(tmp_path, ["0-0"] * 5)
    (tmp_path / "a.align").write_text("0-0\n" * lines)
    message = rf"line {min(lines, 5) + 1}: .*{missing} ends before it, and all must have"
    with pytest.raises(TaskError, match=message):
        PairStore([corpus])


def test_an_alignment_that_is_no_text(tmp_path):
    corpus = corpus_of(tmp_path, ["0-0"] * 3)
    (tmp_path / "a.align").write_bytes(b"0-0\n\xff\n0-0\n")
    with pytest.raises(TaskError, match=r"line 2: not UTF-8 text in .*a\.align"):
        PairStore([corpus])


def test_a_check_counts_bad_links_together(tmp_path):
    found = check_corpus(corpus_of(tmp_path, ["1-1", "3-1", "9-9", "", "x"]))
    assert found.stops
    told = [str(finding) for finding in found.findings if finding.stops]
    assert len(told) == 3
    assert told[2].startswith("1 different sentences: training needs")
    assert told[0].startswith("2 ")
    assert told[0].endswith("counted from 0: line 2, 3")
    assert told[1].endswith("a hyphen between them: line 5")


def permuted(folder, count=60, seed=0):
    """Pairs whose target has the words of the source from the last to the first, in other letters; and their links."""
    rng = np.random.default_rng(seed)
    source, target, aligned = [], [], []
    for _ in range(count):
        words = rng.choice(24, rng.integers(3, 8), replace=False)
        order = np.arange(len(words))[::-1]
        source.append(" ".join(f"{'aeiou'[w % 5]}{'bcdfg'[w // 5]}" for w in words))
        target.append(" ".join(f"{'BCDFG'[w // 5]}{'AEIOU'[w % 5]}" for w in words[order]))
        aligned.append(text_of(zip(order, range(len(words)), strict=True)))
    names = ("source", "target", "alignment")
    for name, lines in zip(names, (source, target, aligned), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return {name: folder / name for name in names}


def test_batches_hold_the_links_of_tokens(tmp_path):
    files = permuted(tmp_path)
    made = TextTask.create(**files, vocabulary_size=40)
    task = TextTask.load(made.to_config(), made.files().__getitem__)
    assert task.has_alignments
    gold = dict(zip(*((files[n].read_text().splitlines()) for n in ("source", "alignment")),
                    strict=True))  # fmt: skip
    seen = 0
    for step in range(3):
        one = task.training_batch(0, step, 7)
        assert one.alignment.shape == (*one.target.shape, one.source.shape[1])
        for source, target, rows in zip(*one, strict=True):
            ids = source[source != 0].tolist()
            numbers, words = task.source_words(ids)
            wanted = read_links(gold[" ".join(words)], " ".join(words), " ".join(words))
            of_target, _ = task.target_words(target[target != 0].tolist())
            for t, j in enumerate(of_target):
                own = [s for s, i in enumerate(numbers) if i is not None and (i, j) in wanted]
                assert np.flatnonzero(rows[t]).tolist() == own
                assert rows[t].sum() == pytest.approx(float(bool(own)))
                seen += len(own)
            assert not rows[len(of_target) :].any()
    assert seen > 100
    del files["alignment"]
    assert TextTask.create(**files, vocabulary_size=40).training_batch(0, 0, 7).alignment is None


def test_words_that_the_subwords_count_otherwise_are_not_guided(tmp_path):
    """The sign of the subwords for a space, in the text itself."""
    lines = [f"a{n} b▁c\tx{n} y" for n in range(30)]
    (tmp_path / "a.tsv").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "a.align").write_text("1-1\n" * 30)
    task = TextTask.create(tmp_path / "a.tsv", alignment=tmp_path / "a.align", vocabulary_size=40)
    assert not task.training_batch(0, 0, 7).alignment.any()


# What a call returns


@pytest.mark.parametrize("layers", [3, *slow([1, 2])])
def test_one_layer_alone_builds_its_weights(layers, monkeypatch):
    from heed.layers import attend

    asked, real = [], attend.attention_weights
    monkeypatch.setattr(
        attend, "attention_weights", lambda *a, **k: asked.append(1) or real(*a, **k)
    )
    config = {**CONFIG.to_dict(), "decoder_layers": layers, "attention_dropout": 0.5}
    model, data = Transformer(type(CONFIG).from_dict(config)), batch()
    inputs = {"source": data.source, "target": data.target}
    plain, whole = model(inputs, return_attention_scores=True)
    asked.clear()
    logits, found = model(inputs, return_attention_scores="alignment")
    assert len(asked) == 1
    np.testing.assert_array_equal(logits, plain)
    expected = np.mean(whole["cross"][max(0, layers - 2)], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    _, dropped = model(inputs, training=True, return_attention_scores="alignment")
    np.testing.assert_allclose(np.sum(dropped, -1), 1, rtol=1e-5)  # what is dropped is not in it


# The loss


def random_alignment(data, seed=0):
    """Return the links of most tokens; none for the others."""
    rng = np.random.default_rng(seed)
    found = rng.random((*data.target.shape, data.source.shape[1])).astype("float32")
    found *= (data.source != 0)[:, None] * (rng.random(data.target.shape) < 0.7)[..., None]
    found *= (data.target > 2)[..., None]
    return data._replace(alignment=found / np.maximum(found.sum(-1, keepdims=True), 1e-9))


def made(kind=Transformer, one_shape=True, **options):
    keras.utils.set_random_seed(3)
    model = kind(CONFIG if kind is Transformer else RecurrentTranslatorConfig(12, 15, width=8))
    model.build()
    strategy = tf.distribute.get_strategy()
    return TrainingStep(model, TrainingOptions(**options), strategy, one_shape, guided=True)


@pytest.mark.parametrize(
    ("kind", "one_shape"),
    [(Transformer, True), *slow([(RecurrentTranslator, True), (Transformer, False)])],
)
def test_the_loss_is_higher_by_the_cross_entropy_of_the_alignment(kind, one_shape, request):
    if one_shape:  # the other case says that it can be compiled; so does the next test but one
        request.getfixturevalue("eager")
    data = random_alignment(batch())
    step = made(kind, one_shape, alignment_weight=0.7)
    _, looked = step.model(step._inputs(*data[:2]), return_attention_scores="alignment")
    looked = np.asarray(looked, "float64")
    guided = data.alignment.any(-1)
    assert 0 < guided.sum() < (data.target > 2).sum()
    expected = -(data.alignment * np.log(looked + 1e-9)).sum(-1)[guided].mean()
    plain = step.validate([data]).loss
    assert float(step(data, 0, 1e-3)) == pytest.approx(plain + 0.7 * expected, rel=1e-5)


def test_batches_in_a_step_are_guided_as_one(eager):
    whole = random_alignment(batch(8))
    parts = [Batch(*(part[rows] for part in whole)) for rows in (slice(3), slice(3, 8))]
    one, other = made(alignment_weight=0.5), made(alignment_weight=0.5, accumulate=2)
    for step in range(2):
        loss = float(one(whole, step, 1e-2))
        assert float(other(parts[0], step, 1e-2, parts[1:])) == pytest.approx(loss, rel=1e-5)
    assert_same_weights(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Transformer, RecurrentTranslator])
def test_training_aligns_the_attention(kind):
    data = random_alignment(batch())
    data = data._replace(
        alignment=np.round(data.alignment / data.alignment.max(-1, keepdims=True, initial=1e-9))
    )
    data.alignment[...] *= data.alignment.cumsum(-1) == 1
    step = made(kind, one_shape=False, alignment_weight=1.0)
    for number in range(150):
        step(data, number, 1e-2)
    _, looked = step.model(step._inputs(*data[:2]), return_attention_scores="alignment")
    assert (np.asarray(looked) * data.alignment).sum(-1)[data.alignment.any(-1)].mean() > 0.8


# Runs


def error_rate(run, folder):
    """Of the words of new pairs, how many are linked to another one than the gold alignment says."""
    translator = Translator(run)
    files = permuted(folder, 50, seed=9)
    source, target, gold = (files[name].read_text().splitlines() for name in files)
    ids = [
        [translator.task.encode(line) for line in source],
        translator.task.subwords.encode(target),
    ]
    found = align(translator.model, translator.task, *ids)
    right = [set(one.links) & set(read_links(line, *pair)) for one, line, *pair in
             zip(found, gold, source, target, strict=True)]  # fmt: skip
    return 1 - sum(map(len, right)) / sum(len(line.split()) for line in target)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "steps"), [("transformer", 300), ("recurrent", 100)])
def test_guided_models_align_words_that_they_never_saw_together(tmp_path, architecture, steps):
    """The same model, data and steps, with the alignment and without; a recurrent one finds it by itself, but later."""
    files = permuted(tmp_path, 600)
    rates = {}
    for guided in (True, False):
        if not guided:
            del files["alignment"]
        task = TextTask.create(**files, vocabulary_size=40)
        options = {"width": 32, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
        options |= {"steps": steps, "batch_size": 32, "learning_rate": 5e-3}
        options |= {"validate_every": steps}
        options |= {"alignment_weight": 1.0} if guided else {}
        options |= {"num_heads": 4} if architecture == "transformer" else {}
        run = start_run(tmp_path / str(guided), task, architecture=architecture, **options)
        train(run, progress=False)
        (tmp_path / f"new {guided}").mkdir()
        rates[guided] = error_rate(run, tmp_path / f"new {guided}")
    assert rates[True] < 0.15
    assert rates[False] > 3 * rates[True]


def test_runs_that_cannot_be_guided(tmp_path):
    files = permuted(tmp_path)
    task = TextTask.create(**files, vocabulary_size=40)
    with pytest.raises(TaskError, match="with attention='none' has none"):
        start_run(tmp_path / "run", task, architecture="recurrent", attention="none")
    with pytest.raises(TaskError, match=r"`alignment_weight` must be .* >= 0"):
        start_run(tmp_path / "run", task, alignment_weight=-1)
    with pytest.raises(TaskError, match="alignment is of no text"):
        TextTask.create(alignment=files["alignment"])
    with pytest.raises(TaskError, match="target has no other side"):
        TextTask.create(target=files["target"], alignment=files["alignment"])
    files["alignment"].write_text(files["alignment"].read_text() + " ")
    with pytest.raises(TaskError, match="alignment has changed"):
        task.training_batch(0, 0, 4)
    del files["alignment"]
    plain = TextTask.create(**files, vocabulary_size=40)
    with pytest.raises(TaskError, match="`alignment_weight` is for text"):
        start_run(tmp_path / "run", plain, alignment_weight=0.1)
    assert not (tmp_path / "run").exists()
