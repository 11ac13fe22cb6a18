"""Several languages in one model: each pair is asked for in its own, and no text can ask."""

import collections

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from heed.seq2seq import RunFolder, TaskError, TextTask, Translator, evaluate, start_run, train
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.runs.trained_model import load_model
from heed.seq2seq.tasks.task import Task
from heed.seq2seq.tokens.tokenizer import END_ID
from tests.seq2seq import tiny
from tests.seq2seq.tasks.test_text_task import reloaded

WORDS = {"de": "wort", "fr": "mot", "es": "voz"}


def corpora(folder, languages=("de", "fr"), numbers=range(100)):
    """Return the same sources in each language, one file each."""
    found = []
    for language in languages:
        path = folder / f"{language}.tsv"
        path.write_text("".join(f"word {n}\t{WORDS[language]} {n}\n" for n in numbers))
        found.append({"source": path, "target_language": language})
    return found


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    made = TextTask.create(corpora=corpora(tmp_path_factory.mktemp("text")), vocabulary_size=50)
    return reloaded(made)


def asked(task: Task, ids) -> str:
    """Return the language that a source begins with."""
    return task.source_labels(ids)[0].removeprefix("to ")


def test_every_pair_is_asked_for_in_its_language(task):
    assert task.languages == ("de", "fr")
    seen = collections.Counter()
    for step in range(18):
        batch = task.training_batch(0, step, 10)
        for source, target in zip(batch.source, batch.target, strict=True):
            language = asked(task, source)
            assert task.decode([target])[0].startswith(WORDS[language])
            seen[language] += 1
    assert seen == {"de": 90, "fr": 90}
    assert " in de, fr, 20 others held out" in task.description


def test_held_out_pairs_keep_their_language(task):
    items = task.evaluation_items()
    assert collections.Counter(item.group for item in items) == {"de": 5, "fr": 5}
    for item in items:
        assert item.reference.startswith(WORDS[item.group])
        assert item.ids == task.encode(item.text, item.group)
    texts = task.validation_texts()
    assert {asked(task, ids) for ids, _ in texts} == {"de", "fr"}
    assert all(text.startswith(WORDS[asked(task, ids)]) for ids, text in texts)
    rows = [row for batch in task.validation_batches() for row in batch.source]
    assert sorted(row[row > 0].tolist() for row in rows) == sorted(ids for ids, _ in texts)


def test_what_is_asked_for(task):
    assert asked(task, task.encode("word 5")) == "de"
    assert asked(task, task.encode("word 5", "fr")) == "fr"
    assert task.encode("word 5", "fr")[1:] == task.encode("word 5", "de")[1:]
    with pytest.raises(TaskError, match=r"one of de, fr.* Received: es"):
        task.encode("word 5", "es")
    ids = task.encode("word 5", "fr")
    assert len(task.source_labels(ids)) == len(ids)
    numbers, words = task.source_words(ids)
    assert words == ["word", "5"]
    assert (numbers[0], numbers[-1]) == (None, None)


@given(text=st.text(st.sampled_from("<2defr> to▁\t"), max_size=20))
def test_no_text_is_taken_for_a_language(task, text):
    if not text.replace("▁", " ").strip():
        return
    tags = {task.encode("x", language)[0] for language in task.languages}
    ids = task.encode(text)
    assert len(tags) == 2
    assert ids[0] in tags
    assert not tags & set(ids[1:])
    assert max(tags) == task.source_vocabulary_size - 1


@pytest.mark.parametrize("vocabulary", ["separate", "shared"])
def test_the_tokens_of_both_sides(vocabulary, tmp_path):
    made = TextTask.create(corpora=corpora(tmp_path), vocabulary_size=50, vocabulary=vocabulary)
    task = reloaded(made)
    same = task.source_vocabulary_size == task.target_vocabulary_size
    assert same == (vocabulary == "shared")
    # A model may write the token of a language, which it never learned to: it says nothing.
    row = [*task.subwords.encode(["wort 5"])[0][:-1], task.target_vocabulary_size - 1, END_ID]
    if same:
        assert task.decode([row]) == ["wort 5"]
        assert task.target_words(row)[1] == ["wort", "5"]
        assert task.target_labels(row)[-1] == "to fr"


def test_the_longest_length_counts_the_language(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{'a ' * (1 + n % 9)}{n}\tb{n}\n" for n in range(120)))
    made = TextTask.create(path, unit="character", longest=10, target_language="de")
    assert made.languages == ("de",)
    task = reloaded(made)
    lengths = [np.count_nonzero(task.training_batch(0, s, 8).source, axis=1) for s in range(20)]
    assert max(map(max, lengths)) <= 10
    known = task._training
    sources = [task.encode(source) for source, _ in task._store.pairs(known.places)]
    assert known.lengths[:, 0].tolist() == list(map(len, sources))
    assert known.too_long > 20
    note = (
        f"{known.too_long} pairs are left out of training, because a side has more than 10 tokens"
    )
    assert note in task.notes()
    long = "a " * 4 + "1"  # 11 characters with the one before the first, and the end
    with pytest.raises(TaskError, match=r"at most 10 tokens, .*Received: 12"):
        task.encode(long)
    with pytest.raises(TaskError, match=r"`longest` must be an integer >= 2"):
        TextTask.create(path, longest=1)
    cut = [item for item in task.evaluation_items() if item.cut]
    assert cut
    assert all(len(item.ids) == 10 and asked(task, item.ids) == "de" for item in cut)


def test_held_out_files_of_one_language(tmp_path):
    (german,) = corpora(tmp_path, ("de",))
    valid = tmp_path / "valid.tsv"
    valid.write_text("word 1000\twort 1000\n")
    task = reloaded(TextTask.create(corpora=[german], vocabulary_size=50, test_source=valid))
    assert [item.group for item in task.evaluation_items()] == ["de"]
    problem = r"valid\.tsv must have a `target_language`, one of de, fr: list it under `test` in a --config"
    with pytest.raises(TaskError, match=problem):
        TextTask.create(corpora=corpora(tmp_path), test_source=valid)


def test_held_out_files_of_several_languages(tmp_path):
    text = corpora(tmp_path)

    def held_out(language, number):
        path = tmp_path / f"{language}-{number}.tsv"
        path.write_text(f"word {number}\t{WORDS[language]} {number}\nword 1000\t{number}\n")
        return {"source": path, "target_language": language}

    valid, test = [held_out("fr", 5)], [held_out("fr", 3), held_out("de", 7)]
    task = reloaded(TextTask.create(corpora=text, vocabulary_size=50, valid=valid, test=test))
    assert [(item.group, item.reference) for item in task.evaluation_items()] == [
        ("fr", "mot 3"),
        ("fr", "3"),
        ("de", "wort 7"),
        ("de", "7"),
    ]
    assert [target for _, target in task.validation_texts()] == ["mot 5", "5"]
    assert {asked(task, ids) for ids, _ in task.validation_texts()} == {"fr"}
    # Whichever language it is translated into, a sentence that is held out is not trained on.
    batches = [task.training_batch(0, step, 8).source.tolist() for step in range(60)]
    trained = {text for rows in batches for text in task.source_subwords.decode(rows)}
    assert trained == {f"word {n}" for n in range(100)} - {"word 3", "word 5", "word 7"}


@pytest.mark.parametrize(
    ("held_out", "problem"),
    [
        ({"target_language": "es"}, "must be one of de, fr. Received: es"),
        ({"weight": 2}, "one of `valid` has source, target, target_language. Received: weight"),
    ],
)
def test_held_out_files_that_do_not_serve(held_out, problem, tmp_path):
    text = corpora(tmp_path)
    with pytest.raises(TaskError, match=problem):
        TextTask.create(corpora=text, valid=[{"source": text[0]["source"], **held_out}])
    plain = {"source": text[0]["source"]}
    with pytest.raises(TaskError, match=r"must be left out, .*Received: de"):
        TextTask.create(corpora=[plain], valid=[{**plain, "target_language": "de"}])


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ({}, r"each corpus must have a `target_language`, or none\. Without one: .*fr\.tsv"),
        ({"target_language": ""}, "`target_language` must be letters, digits, - and _"),
        ({"target_language": "to fr"}, "`target_language` must be letters, digits, - and _"),
        ({"target_language": "fr\n"}, "`target_language` must be letters, digits, - and _"),
        ({"target_language": False}, "`target_language` must be letters.* Received: False"),
        ({"target_langage": "fr"}, "Received: target_langage"),
    ],
)
def test_languages_that_do_not_serve(second, problem, tmp_path):
    first, other = corpora(tmp_path)
    with pytest.raises(TaskError, match=problem):
        TextTask.create(corpora=[first, {"source": other["source"], **second}])


def test_a_language_belongs_to_a_source(tmp_path):
    with pytest.raises(TaskError, match="`target_language` is that of --source"):
        TextTask.create(corpora=corpora(tmp_path), target_language="de")
    paths = [one["source"] for one in corpora(tmp_path)]
    other = [{"source": paths[1], "target_language": "fr"}]
    made = TextTask.create(paths[0], corpora=other, target_language="de", vocabulary_size=50)
    assert made.languages == ("de", "fr")


def test_batches_are_the_same_after_a_stop(task):
    again = reloaded(task)
    for step in (0, 7, 23):
        one, other = (each.training_batch(3, step, 8) for each in (task, again))
        np.testing.assert_equal(one, other)


def test_a_run_in_several_languages(tmp_path, eager):
    """It is judged by language, and needs the text that it learned no more."""
    made = TextTask.create(corpora=corpora(tmp_path), vocabulary_size=50, vocabulary="shared")
    run = start_run(tmp_path / "run", made, **{**tiny.TINY, "steps": 2, "share_embeddings": True})
    train(run, progress=False)
    for path in tmp_path.glob("*.tsv"):
        path.unlink()
    translator = Translator(RunFolder.open(run.path))
    found = evaluate(translator)
    assert list(found.groups()) == list(found.to_dict()["group_scores"]) == ["de", "fr"]
    for name, group in found.groups().items():
        said, right = zip(
            *((a.translation, a.reference) for a in found.answers if a.group == name), strict=True
        )
        assert group.chrf == sacrebleu.corpus_chrf(said, [right]).score
        assert group.bleu is None, "targets of two words are too short for it"
        assert f" %, chrF {group.chrf:.1f}" in "".join(found.report())
    assert len(translator(["word 5"], "fr")) == 1
    with pytest.raises(TaskError, match="must be one of de, fr"):
        translator(["word 5"], "es")


@pytest.mark.slow
def test_a_run_goes_on_in_more_languages(tmp_path):
    """Languages of before keep their token, by name; vocabularies are those of before."""
    before = TextTask.create(corpora=corpora(tmp_path, ("fr", "de")), vocabulary_size=50)
    old = start_run(tmp_path / "old", before, **{**tiny.TINY, "steps": 2})
    train(old, progress=False)
    three = corpora(tmp_path, ("es", "de", "fr"))
    task = TextTask.create(corpora=three, **before.same_vocabulary(["corpora"]))
    assert task.source_vocabulary_size == before.source_vocabulary_size + 1
    assert task.target_vocabulary_size == before.target_vocabulary_size
    assert before.same_vocabulary(["unit"]) == {}
    new = start_run(tmp_path / "new", task, init_from=old)
    model = load_model(old)[0]
    (place,) = (i for i, w in enumerate(model.weights) if "encoder/embedding/tokens" in w.path)
    first = checkpoint.load(new.path / "initial.npz")[0]["weight"][place]
    for language in ("de", "fr"):
        mine, other = (one.encode("word", language)[0] for one in (task, before))
        assert first[mine].tolist() == model.weights[place].numpy()[other].tolist()
