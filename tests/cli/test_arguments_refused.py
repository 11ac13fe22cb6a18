"""Each command refuses bad arguments in one line, before it changes anything."""

import shutil

import numpy as np
import pytest

from heed.seq2seq.runs import checkpoint
from heed.seq2seq.text import catalogs
from tests.cli.command import contents, fails


@pytest.mark.parametrize(
    ("status", "words", "message"),
    [
        (2, ["train"], "choose a task"),
        (2, ["train", "numbers", "--resume", "x"], "choose a task"),
        (2, ["train", "numbers", "--source", "a", "--target", "b"], "--source is for own text"),
        (2, ["train", "--languages", "en"], "choose a task"),
        (2, ["train", "text"], "own text needs --source"),
        (2, ["train", "--source", "a"], "a has one side: give the file of the other one too"),
        (1, ["train", "--source", "a", "--target", "b"], "cannot read a: No such file"),
        (2, ["train", "--source=a", "--target=b", "--languages=en"], "--languages is for numbers"),
        (1, ["train", "--resume", "x"], "x does not exist"),
        (1, ["train", "--resume", ".", "--steps", "9"], "not a run folder"),
        (2, ["train", "--resume", ".", "--config", "a.yaml"], "leave out --config"),
        (2, ["train", "--resume", ".", "--init-from", "x"], "leave out --init-from"),
        (2, ["train", "--resume", ".", "--no-gated"], "leave out --gated"),
        (1, ["train", "--config", "a.yaml"], "cannot read a.yaml: No such file"),
        (1, ["train", "numbers", "--init-from", "x"], "x does not exist"),
        (2, ["train", "numbers", "--ema", "1"], "`ema` must be"),
        (2, ["train", "numbers", "--architecture", ""], "`architecture` must be one of"),
        (1, ["average", "x"], "x does not exist"),
        (2, ["average", "x", "--last", "0"], "--last must be an integer >= 1. Received: 0"),
        (2, ["train", "--resume", ".", "--languages", ""], "leave out --languages"),
        (2, ["train", "--resume", ".", "--run", "x"], "leave out --run"),
        (2, ["train", "numbers", "--vocabulary-size", "0"], "--vocabulary-size is for own text"),
        (2, ["train", "numbers", "--languages", ""], "languages must be some of"),
        (2, ["demo", "--languages", "en,en"], "each once"),
        (1, ["evaluate", "x"], "x does not exist"),
        (1, ["evaluate", "."], "not a run folder"),
        (1, ["translate", "x", "1"], "x does not exist"),
        (1, ["explain", "x", "1"], "x does not exist"),
    ],
)
def test_what_cannot_be_done(heed, status, words, message, tmp_path):
    fails(heed(*words), status, message)
    assert not list(tmp_path.iterdir()), "nothing was made"


@pytest.mark.parametrize(
    ("status", "words", "message"),
    [
        (2, "train --resume run --steps 12", "`steps` must be more than the 12"),
        (2, "train --resume run --width 8", "leave out --width"),
        (1, "train numbers --run run", "exists already"),
        (2, "train numbers --init-from run --width 6", "leave out `width`"),
        (1, "train --source a.tsv --vocabulary-size 9", "at least 20 different sentences"),
        (2, "train --source a.tsv --source-tokenizer a.tsv", "`source_tokenizer` needs"),
        (1, "train --source a.tsv --alignment none", "cannot read none"),
        (2, "train --config a.tsv", "a.tsv"),
        (1, "demo --run run", "exists already"),
        (2, "demo --steps 0", "`steps` must be"),
        (2, "average run --last 9", "`last` asks for 9"),
        (1, "evaluate run --source none.tsv", "cannot read none.tsv"),
        (1, "evaluate run --compare a.tsv", "not a run folder"),
        (2, "translate run 1 --input a.tsv", "not both"),
        (2, "translate run --input a.tsv --output a.tsv", "--output must not be"),
        (1, "translate run --input none --output out.txt", "cannot read or write none"),
        (1, "translate run --input . --output out.txt", "cannot read or write .: Is a directory"),
        (1, "translate run 1 --output .", "cannot read or write .: Is a directory"),
        (1, "translate run x --output out.txt", "a number must be digits"),
        (2, "translate run --language fr --input a.tsv --output out.txt", "must be one of en, de"),
        (1, "translate run 1 --ensemble none --output out.txt", "none does not exist"),
        (2, "translate run 1 --beam-size 0 --output out.txt", "`beam_size` must be"),
        (2, "translate run 1 --batch-size 0", "--batch-size must be an integer >= 1"),
        (2, "translate run 1 --device-threads 0", "--device-threads must be an integer >= 1"),
        (2, "explain run", "give the text to translate too: heed explain run TEXT"),
        (1, "explain run x --out a.html", "a number must be digits"),
        (2, "explain run 1 --out a.html --png a.bmp", "must be a .png, .svg or .pdf file"),
        (1, "explain run 1 --png no/a.png", "--png must be a file in an existing folder, not no"),
        (1, "explain run 1 --out .", "--out must be a file in an existing folder, not ."),
        (1, "data check none a.tsv", "cannot read none"),
        (1, "data catalogs --to de --out none", "--out must be an existing folder"),
        (1, "data catalogs --to de --out a.tsv", "--out must be an existing folder"),
        (1, "export run --format onnx --out run", "exists already"),
        (1, "serve run none", "none does not exist"),
        (2, "serve run --max-batch 0", "`max_batch` must be"),
    ],
)
def test_a_refusal_leaves_everything_as_it_was(
    heed, run_path, tmp_path, status, words, message, monkeypatch
):
    monkeypatch.setattr(catalogs, "read_pairs", lambda language: [("Open", "Auf")])
    shutil.copytree(run_path, tmp_path / "run")
    (tmp_path / "a.tsv").write_text("1\tone\n2\ttwo\n")
    before = contents(tmp_path)
    fails(heed(*words.split()), status, message)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["", "-5"])
def test_text_where_a_number_belongs(heed, run_path, text):
    fails(heed("translate", run_path, text), 1, "number")
    fails(heed("explain", run_path, text), 1, "number")
    assert not (run_path / "attention.html").exists()


@pytest.mark.parametrize("command", ["translate", "explain"])
def test_bad_text_does_not_wait_for_the_model(heed, run_path, monkeypatch, command):
    monkeypatch.setattr(f"heed.cli._{command}.open_translator", lambda *_: 1 / 0)
    fails(heed(command, run_path, "12a"), 1, "number")


def test_a_run_that_diverged_is_one_sentence_in_each_command(heed, trained_path, tmp_path):
    run = shutil.copytree(trained_path, tmp_path / "run")
    arrays, meta = checkpoint.load(run / "weights.npz")
    checkpoint.save(run / "weights.npz", {"weight": [x * np.nan for x in arrays["weight"]]}, meta)
    for words in (["translate", run, "1"], ["explain", run, "1"], ["serve", run, "--port=0"]):
        fails(heed(*words), 1, "its weights are not finite, as after a training that diverged")
