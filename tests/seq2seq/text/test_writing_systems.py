"""Text of many writing systems, from the check of a corpus to a server: the same words everywhere.

Each sentence holds line breaks, joiners, marks that combine, or letters outside the basic plane.
"""

import gzip
import json
import unicodedata

import pytest
from fastapi.testclient import TestClient

from heed import cli
from heed.seq2seq import Corpus, RunFolder, TextTask, Translator, evaluate, start_run, train
from heed.seq2seq.evaluating.evaluation import write_evaluation
from heed.seq2seq.evaluating.report import write_report
from heed.seq2seq.options.serving import ServingOptions
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.serving.app import Service, make_app
from heed.seq2seq.text.corpus_check import check_corpus
from heed.seq2seq.tokens.tokenizer import UNKNOWN_ID
from heed.seq2seq.translating.attention import read_attention
from tests.seq2seq import tiny
from tests.seq2seq.conftest import trained_once
from tests.seq2seq.training.test_training import CrashError, metrics, stop_at

# Words by writing system; "\n" stands between the lines of a message.
WORDS = {
    "chinese": "红色 蓝色 很大 很小 老师 昨天".split(" "),
    "persian": "کتاب\u200cها می\u200cروم خانه نمی\u200cدانم گل آبی".split(" "),
    "hindi": "क़िताब घर लड़का पढ़ना नीला ज़रा".split(" "),
    "thai": "น้ำ ที่นี่ สีแดง เก้าอี้ ใหญ่ เล็ก".split(" "),
    "emoji": "👩\u200d👩\u200d👧 🏳️\u200d🌈 👍🏽 é 🇩🇪 ﷽".split(" "),
}


def sentences(name, count):
    """Return different sentences of a writing system; Chinese and Thai have no spaces."""
    words = WORDS[name]
    space = "" if name in ("chinese", "thai") else " "
    return [
        f"{words[n % 6]}{space}{words[n // 6 % 6]}\n{words[n // 36 % 6]}{space}{n}"
        for n in range(count)
    ]


def corpus_of(path):
    """Return the corpus of a run."""
    return path.with_name(f"{path.name}.jsonl.gz")


def start(path, names, **options):
    """Return a tiny run on a compressed corpus: each sentence and its lines in the other order."""
    texts = [text for name in names for text in sentences(name, 60 // len(names))]
    rows = [{"source": text, "target": "\n".join(text.split("\n")[::-1])} for text in texts]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    corpus_of(path).write_bytes(gzip.compress(lines.encode()))
    return start_run(path, TextTask.create(corpus_of(path), **options), **tiny.TINY)


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Return a tiny run on all of them together."""
    return trained_once(tmp_path_factory, "writing-systems", lambda path: start(path, WORDS))


TEXTS = [sentences(name, 8)[n] for n, name in enumerate(WORDS)]


def others(text):
    """Return the same text as other programs may write it."""
    return [unicodedata.normalize("NFD", text), f"\u3000{text}\n".replace(" ", "\xa0")]


def test_nothing_is_lost_from_the_check_to_the_page(run, tmp_path, capsys):
    corpus = corpus_of(run.path)
    assert list(check_corpus(Corpus(corpus)).report()) == [
        "60 lines, 60 different pairs", "no problems"
    ]  # fmt: skip
    translator = Translator(run)
    task = translator.task
    pairs = list(Corpus(corpus).pairs())
    held_out = {item.text for item in task.evaluation_items()}
    assert len(held_out) == 3
    assert held_out < {source for source, _ in pairs}
    for source, target in pairs:
        ids = task.encode(source)
        assert UNKNOWN_ID not in [*ids, *task.subwords.encode([target])[0]]
        assert task.source_subwords.decode([ids]) == [unicodedata.normalize("NFC", source)]
        assert [task.encode(text) for text in others(source)] == [ids, ids]
    wanted = translator(TEXTS)
    assert all(wanted)
    lines = [text.translate(str.maketrans("\r\n", "  ")) for text in wanted]

    # A file of lines holds one line of each text.
    alone = [text.replace("\n", " ") for text in TEXTS]
    (tmp_path / "in").write_bytes(gzip.compress("".join(f"{text}\n" for text in alone).encode()))
    of_lines = [text.translate(str.maketrans("\r\n", "  ")) for text in translator(alone)]
    assert cli.main(["translate", str(run.path), "--input", str(tmp_path / "in"), "--quiet"]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == of_lines
    assert cli.main(["translate", str(run.path), TEXTS[0], "--n-best", "1"]) == 0
    assert capsys.readouterr().out == f"1\t{lines[0]}\n"

    words = ["explain", str(run.path), others(TEXTS[1])[1], "--out", str(tmp_path / "a.html")]
    assert cli.main(words) == 0
    assert capsys.readouterr().out.split("\n")[0] == lines[1]
    seen = read_attention(translator, TEXTS[1])
    assert seen.translation == wanted[1]

    evaluation = evaluate(translator)
    assert [a.translation for a in evaluation.answers] == translator(
        [a.source for a in evaluation.answers]
    )
    assert {a.reference for a in evaluation.answers} < {
        unicodedata.normalize("NFC", t) for _, t in pairs
    }
    saved = json.loads(write_evaluation(translator, evaluation).read_text(encoding="utf-8"))
    assert {one["source"] for one in saved["wrong"]} <= held_out
    assert write_report(tmp_path / "report.html", translator, evaluation, None).stat().st_size

    service = Service({"mixed": translator}, ServingOptions())
    with TestClient(make_app(service), "http://localhost") as client:
        for text, translation in zip(TEXTS, wanted, strict=True):
            for one in (text, *others(text)):
                answer = client.post("/translate", json={"texts": [one]})
                assert [x["text"] for x in answer.json()["translations"]] == [translation]


def stop_and_resume(path, start_again, straight, monkeypatch):
    """Train a run again, with a stop; it ends with the same bits."""
    stopped = start_again(path)
    with monkeypatch.context() as patch:
        stop_at(patch, 10, CrashError())
        with pytest.raises(CrashError):
            train(stopped, progress=False)
    assert checkpoint.load_latest(stopped.checkpoints, pytest.fail)[1]["step"] == 9
    train(RunFolder.open(path), progress=False)
    assert tiny.same(tiny.weights(stopped), tiny.weights(straight))
    assert metrics(stopped) == metrics(straight)


@pytest.mark.slow
def test_a_stop_changes_no_bit(run, tmp_path, monkeypatch):
    stop_and_resume(tmp_path / "stopped", lambda path: start(path, WORDS), run, monkeypatch)


OPTIONS = {
    "bytes": {"vocabulary_size": 324},
    "words": {"unit": "word"},
    "characters": {"unit": "character", "unicode_form": "nfkc"},
    "shared": {"vocabulary": "shared", "unicode_form": "none"},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", WORDS)
def test_each_writing_system_alone(name, options, tmp_path, monkeypatch):
    def start_again(path):
        return start(path, [name], **OPTIONS[options])

    run = start_again(tmp_path / "straight")
    train(run, progress=False)
    stop_and_resume(tmp_path / "stopped", start_again, run, monkeypatch)
