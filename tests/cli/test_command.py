"""The command itself: names of commands and options, help, exit statuses, and the limits of numbers."""

import subprocess
import sys

import pytest
import tensorflow as tf

import heed as package
from heed.cli._command import _COMMANDS
from heed.number_checks import LARGEST_COUNT
from heed.seq2seq import RunFolder
from heed.seq2seq.options.settings import TRAINING
from heed.seq2seq.serving import _sockets
from heed.seq2seq.tasks.numbers_task import NumbersTask
from tests.cli.command import OPTIONS, fails

HUGE = str(10**23)


def test_what_does_not_wait_for_tensorflow(run_path):
    """Help, and what is wrong with arguments; a port in use, and that an extra is missing."""
    with _sockets.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code = f"""
import sys
from heed.cli import main
run = {str(run_path)!r}
serve = ["serve", run, "--port", "{port}"]
files = ["--input", "in/*.md", "--output", "out"]
for words in (["--help"], ["train", "--help"], ["frobnicate"], ["translate", "nowhere", "1"],
              ["translate", run, *files], serve, [*serve, "--allowed-host", "http://x"]):
    try:
        print(main(words))
    except SystemExit as stop:
        print(stop.code)
sys.modules["fastapi"] = None
print(main(serve), "tensorflow" in sys.modules or "keras" in sys.modules)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-6:] == ["2", "1", "1", "1", "1", "1 False"], done.stderr
    assert "demo" in done.stdout
    *_, in_use, no_host, missing = done.stderr.splitlines()
    assert f"port {port}: Address already in use" in in_use
    assert "Address already in use" in no_host
    assert "serving needs fastapi: pip install" in missing
    assert "[serve]" in missing


@pytest.mark.parametrize("words", ["translate x \udcff", "translate \udcff", "info --\udcff"])
def test_arguments_that_are_no_text(heed, words):
    """Python reads bytes that are not UTF-8 as surrogates."""
    said = "heed: the arguments must be UTF-8 text. Received: '"
    fails(heed(*words.split()), 2, said)


def test_faults_of_heed_are_not_hidden(heed, run_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "task", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        heed("translate", run_path, "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "--run"], "expected one argument"),
        (["train", "numbers", "--steps", "many"], "invalid int value: 'many'"),
        (["train", "letters"], "invalid choice"),
        (["evaluate"], "RUN"),
        (["evaluate", "x", "y"], "unrecognized arguments: y"),
        (["explain"], "RUN"),
        (["explain", "x", "1", "--out"], "expected one argument"),
    ],
)
def test_wrong_arguments(heed, words, message):
    fails(heed(*words), 2, message)


def test_memory_that_runs_out(heed, run_path, monkeypatch):
    for error in (MemoryError(), tf.errors.ResourceExhaustedError(None, None, "OOM")):

        def encode(*_, error=error):
            raise error

        monkeypatch.setattr(NumbersTask, "encode", encode)
        fails(heed("translate", run_path, "1"), 1, "heed: not enough memory\n")


def test_ctrl_c_has_a_status_of_its_own(heed, monkeypatch):
    def stop(_):
        raise KeyboardInterrupt("stopped at step 9 of 12")

    monkeypatch.setattr("heed.seq2seq.train", stop)
    fails(heed("train", "numbers", *OPTIONS), 130, "heed: stopped at step 9 of 12\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --source a --stps 10", "'--stps': did you mean `--steps`? (see heed train"),
        ("train --source a --stps=10", "'--stps': did you mean `--steps`?"),
        ("train -steps 10", "'-steps': did you mean `--steps`?"),
        ("translate x 1 --bean-size 4", "'--bean-size': did you mean `--beam-size`?"),
        ("translate x --frob -- --beam", "there is no option '--frob'"),
        ("data check a b --aligment c", "heed data check: there is no option '--aligment': did"),
        ("--versoin", "'--versoin': did you mean `--version`? (see heed --help)"),
        ("trian --steps 5", "there is no command 'trian': did you mean `train`? (see heed --help)"),
        ("data chek a", "heed data: there is no command 'chek': did you mean `check`?"),
        ("help frob", "there is no command 'frob'"),
        ("0", "there is no command '0'"),
        ("--print-completion", "expected one argument"),
        ("--print-completion sh", "invalid choice: 'sh'"),
        ("data", "the following arguments are required: WHAT"),
        # by their meaning
        ("train --lr 1", "'--lr': did you mean `--learning-rate`?"),
        ("train --epochs 3", "did you mean `--steps`?"),
        ("train --model big", "did you mean `--architecture` or `--preset`?"),
        ("train --src a", "did you mean `--source`?"),
        ("translate --run x", "RUN is given without an option, as in heed translate RUN text"),
        ("serve --checkpoint x", "RUN is given without an option"),
        ("data check --source a", "source is given without an option"),
        ("predict x", "there is no command 'predict': did you mean `translate`?"),
        ("export x --out y --format tflite", "did you mean `litert`?"),
        ("export x --out y --format ONNX", "did you mean `onnx`?"),
        ("train numbers --preset small", "Received: 'small': did you mean `tiny` or `mini`?"),
        ("demo --languages german", "did you mean `de`?"),
        # words that have no place
        ("train a.txt b.txt", "as in --source a.txt --target b.txt (see heed train --help)"),
        ("train --source a.txt b.txt", "as in --target b.txt"),
        ("evaluate x a.tsv", "as in --source a.tsv"),
        ("demo --languages en de", "as in --languages en,de (see heed demo --help)"),
        ("train --languages=en, de fr", "as in --languages en,de,fr (see heed train --help)"),
        ("serve x --name a b", "as in --name a --name b"),
        ("evaluate x --language en de", "--language takes one value (see heed evaluate --help)"),
    ],
)
def test_names_are_checked_before_values(heed, words, message):
    fails(heed(*words.split()), 2, message)


@pytest.mark.parametrize("command", ["data check" if x == "data" else x for x in _COMMANDS])
def test_no_command_takes_an_unknown_option(heed, command):
    refused = heed(*command.split(), "x", "--frob", "1")
    fails(refused, 2, f"heed {command}: there is no option '--frob'")


def test_what_begins_with_a_dash_but_is_no_option(heed):
    for words in (["-5"], ["-.5"], ["--", "--frob"], ["-a text"], ["--frob", "-"][1:]):
        fails(heed("translate", "x", *words), 1, "x does not exist")
    fails(heed("translate", "x", "--bea", "2", "1"), 1, "x does not exist")  # shortened


def test_ctrl_c_while_modules_load():
    """The signal comes with the first import of the command, as to someone who thinks better of it at once."""
    code = """
import os, signal, sys
class Interrupt:
    def find_spec(name, *_):
        if name == "heed.cli._command":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background commands ignore it
from heed.cli import main
sys.exit(main(["info"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "heed: stopped\n")


def test_heed_alone_shows_a_newcomer_three_commands(heed):
    status, out, err = heed()
    assert (status, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("  heed ")] == [
        "demo", "train", "translate",
    ]  # fmt: skip
    assert out.count("\n") <= 10


def test_help_and_version(heed):
    for words in ((), ("train",), ("data", "check")):
        asked = heed("help", *words)
        assert asked[0] == 0
        assert asked == heed(*words, "--help")
    assert heed("-V") == heed("--version") == (0, f"heed {package.__version__}\n", "")


def test_numbers_that_no_machine_can_count_to(heed, run_path):
    limit = f"must be at most {LARGEST_COUNT:,}. Received: "
    names = [one.name for one in TRAINING if one.kind is int and one.name not in ("seed", "steps")]
    for name in (*names, "width", "encoder_layers"):  # the model's are checked by its config
        option = f"--{name.replace('_', '-')}"
        fails(heed("train", "numbers", option, HUGE), 2, f"`{name}` {limit}")
    fails(heed("train", "numbers", "--seed", HUGE), 2, "`seed` must be")
    words = ("translate", run_path, "1", "--beam-size", HUGE)
    fails(heed(*words), 2, "`beam_size` must be at most 65,536")
    for name in ("--top-k", "--max-length", "--n-best", "--batch-size", "--device-threads"):
        fails(heed("translate", run_path, "1", "--temperature", "1", name, HUGE), 2, limit)
    fails(heed("average", run_path, "--last", HUGE), 2, f"--last {limit}")
    for name in ("--learning-rate", "--clip-norm"):
        fails(heed("train", "numbers", name, "inf"), 2, "must be a finite number")


@pytest.mark.parametrize("command", [*_COMMANDS, "data check", "data catalogs", ""])
def test_help_fits_a_screen_and_shows_an_example(heed, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = heed(*command.split(), "--help")
    assert status == 0
    assert f"for example: heed {command}".rstrip() in out
    assert max(map(len, out.splitlines())) <= 80 or command == "train"
    assert out.count("\n") <= (128 if command == "train" else 46), "train lists all of its options"
