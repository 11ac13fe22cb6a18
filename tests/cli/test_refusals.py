"""Each command refuses bad arguments in one line, before it changes anything."""

import shutil

import numpy as np
import pytest

from heed.seq2seq import catalogs, checkpoint
from tests.cli.command import contents, fails


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "choose a task"),
        (["train", "numbers", "--resume", "x"], "choose a task"),
        (["train", "numbers", "--source", "a", "--target", "b"], "--source is for own text"),
        (["train", "--languages", "en"], "choose a task"),
        (["train", "text"], "own text needs --source"),
        (["train", "--source", "a"], "a has one side: give the file of the other one too"),
        (["train", "--source", "a", "--target", "b"], "cannot read a: No such file"),
        (
            ["train", "--source", "a", "--target", "b", "--languages", "en"],
            "--languages is for numbers",
        ),
        (["train", "--resume", "x"], "x does not exist"),
        (["train", "--resume", ".", "--steps", "9"], "not a run folder"),
        (["train", "--resume", ".", "--config", "a.yaml"], "leave out --config"),
        (["train", "--resume", ".", "--init-from", "x"], "leave out --init-from"),
        (["train", "--resume", ".", "--no-gated"], "leave out --gated"),
        (["train", "--config", "a.yaml"], "cannot read a.yaml: No such file"),
        (["train", "numbers", "--init-from", "x"], "x does not exist"),
        (["train", "numbers", "--ema", "1"], "`ema` must be"),
        (["train", "numbers", "--cell", "gru"], "`cell` is for the recurrent architecture"),
        (["train", "numbers", "--preset", "huge"], "`preset` must be one of"),
        (["train", "numbers", "--architecture", ""], "`architecture` must be one of"),
        (["average", "x"], "x does not exist"),
        (["average", "x", "--last", "0"], "--last must be an integer >= 1. Received: 0"),
        (["train", "--resume", ".", "--batch-size", "9"], "leave out --batch-size"),
        (["train", "--resume", ".", "--languages", ""], "leave out --languages"),
        (["train", "--resume", ".", "--run", "x"], "leave out --run"),
        (["train", "--resume", ".", "--vocabulary-size", "0"], "leave out --vocabulary-size"),
        (["train", "numbers", "--vocabulary-size", "5"], "--vocabulary-size is for own text"),
        (["train", "numbers", "--vocabulary-size", "0"], "--vocabulary-size is for own text"),
        (["train", "--resume", "."], "not a run folder"),
        (["train", "numbers", "--steps", "0"], "`steps` must be"),
        (["train", "numbers", "--dropout", "2"], "`dropout` must be"),
        (["train", "numbers", "--languages", "en,tlh"], "languages must be some of"),
        (["train", "numbers", "--languages", ""], "languages must be some of"),
        (["demo", "--languages", "en,en"], "each once"),
        (["evaluate", "x"], "x does not exist"),
        (["evaluate", "."], "not a run folder"),
        (["translate", "x", "1"], "x does not exist"),
        (["explain", "x", "1"], "x does not exist"),
    ],
)
def test_what_cannot_be_done(heed, words, message, tmp_path):
    fails(heed(*words), 1, message)
    assert not list(tmp_path.iterdir()), "nothing was made"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --resume run --steps 12", "`steps` must be more than the 12"),
        ("train --resume run --width 8", "leave out --width"),
        ("train numbers --run run", "exists already"),
        ("train numbers --init-from run --width 6", "leave out `width`"),
        ("train --source a.tsv --vocabulary-size 9", "at least 20 different sentences"),
        ("train --source a.tsv --source-tokenizer a.tsv", "`source_tokenizer` needs"),
        ("train --source a.tsv --alignment none", "cannot read none"),
        ("train --config a.tsv", "a.tsv"),
        ("demo --run run", "exists already"),
        ("demo --steps 0", "`steps` must be"),
        ("average run --last 9", "`last` asks for 9"),
        ("evaluate run --source none.tsv", "cannot read none.tsv"),
        ("evaluate run --compare a.tsv", "not a run folder"),
        ("evaluate run --report no/a.html", "--report must be"),
        ("translate run 1 --input a.tsv", "not both"),
        ("translate run --input a.tsv --output a.tsv", "--output must not be"),
        ("translate run --input none --output out.txt", "cannot read or write none"),
        ("translate run --input . --output out.txt", "cannot read or write .: Is a directory"),
        ("translate run 1 --output .", "cannot read or write .: Is a directory"),
        ("translate run x --output out.txt", "a number must be digits"),
        ("translate run --language fr --input a.tsv --output out.txt", "must be one of en, de"),
        ("translate run 1 --ensemble none --output out.txt", "none does not exist"),
        ("translate run 1 --beam-size 0 --output out.txt", "`beam_size` must be"),
        ("explain run", "give the text to translate too: heed explain run TEXT"),
        ("explain run x --out a.html", "a number must be digits"),
        ("explain run 1 --out a.html --png a.bmp", "must be a .png, .svg or .pdf file"),
        ("explain run 1 --png no/a.png", "--png must be a file in an existing folder"),
        ("data check none a.tsv", "cannot read none"),
        ("data catalogs --to de --out none", "--out must be an existing folder"),
        ("data catalogs --to de --out a.tsv", "--out must be an existing folder"),
        ("export run --format onnx --out run", "exists already"),
        ("serve run none", "none does not exist"),
        ("serve run --max-batch 0", "`max_batch` must be"),
    ],
)
def test_a_refusal_leaves_everything_as_it_was(
    heed, run_path, tmp_path, words, message, monkeypatch
):
    monkeypatch.setattr(catalogs, "read_pairs", lambda language: [("Open", "Auf")])
    shutil.copytree(run_path, tmp_path / "run")
    (tmp_path / "a.tsv").write_text("1\tone\n2\ttwo\n")
    before = contents(tmp_path)
    fails(heed(*words.split()), 1, message)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["", "abc", "-5", "1.5", "1000000", "12a", "½"])
def test_text_where_a_number_belongs(heed, run_path, text):
    fails(heed("translate", run_path, text), 1, "number")
    fails(heed("explain", run_path, text), 1, "number")
    assert not (run_path / "attention.html").exists()


def test_an_existing_folder_is_never_touched(heed, run_path, tmp_path):
    before = sorted(p.name for p in run_path.iterdir())
    for command in (["demo"], ["train", "numbers"]):
        fails(heed(*command, "--run", run_path), 1, "exists already")
    assert sorted(p.name for p in run_path.iterdir()) == before


@pytest.mark.parametrize("command", ["translate", "explain"])
def test_bad_text_does_not_wait_for_the_model(heed, run_path, monkeypatch, command):
    monkeypatch.setattr(f"heed.cli.{command}.open_translator", lambda *_: 1 / 0)
    fails(heed(command, run_path, "12a"), 1, "number")


def test_a_run_that_diverged_is_one_sentence_in_each_command(heed, trained_path, tmp_path):
    run = shutil.copytree(trained_path, tmp_path / "run")
    arrays, meta = checkpoint.load(run / "weights.npz")
    checkpoint.save(run / "weights.npz", {"weight": [x * np.nan for x in arrays["weight"]]}, meta)
    for words in (["translate", run, "1"], ["explain", run, "1"], ["serve", run, "--port=0"]):
        fails(heed(*words), 1, "its weights are not finite, as after a training that diverged")
