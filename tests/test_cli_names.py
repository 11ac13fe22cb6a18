"""Names of commands and options, help, completion, and the limits of numbers: all that is said before any work."""

import subprocess
import sys

import pytest

import heed as package
from heed._numbers import LARGEST_COUNT
from heed.cli import _COMMANDS
from heed.cli.completion import SHELLS
from heed.seq2seq.settings import MODEL, TRAINING
from heed.seq2seq.tasks import TASKS
from tests.test_cli import fails, heed, run_path, trained_path  # noqa: F401  (fixtures)

HUGE = str(10**23)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "train --source a --target b --stps 10",
            "'--stps': did you mean `--steps`? (see heed train",
        ),
        ("train --source a --target b --stps=10", "'--stps': did you mean `--steps`?"),
        ("train -steps 10", "'-steps': did you mean `--steps`?"),
        ("translate x 1 --bean-size 4", "'--bean-size': did you mean `--beam-size`?"),
        ("translate x --frob -- --beam", "there is no option '--frob'"),
        (
            "data check a b --aligment c",
            "heed data check: there is no option '--aligment': did you mean",
        ),
        ("--versoin", "'--versoin': did you mean `--version`? (see heed --help)"),
        ("trian --steps 5", "there is no command 'trian': did you mean `train`? (see heed --help)"),
        ("data chek a", "heed data: there is no command 'chek': did you mean `check`?"),
        ("help frob", "there is no command 'frob'"),
        ("0", "there is no command '0'"),
        ("--print-completion", "expected one argument"),
        ("--print-completion sh", "invalid choice: 'sh'"),
        ("data", "the following arguments are required: WHAT"),
    ],
)
def test_names_are_checked_before_values(heed, words, message):  # noqa: F811
    fails(heed(*words.split()), 2, message)


@pytest.mark.parametrize("command", ["data check" if x == "data" else x for x in _COMMANDS])
def test_no_command_takes_an_unknown_option(heed, command):  # noqa: F811
    fails(
        heed(*command.split(), "x", "--frob", "1"),
        2,
        f"heed {command}: there is no option '--frob'",
    )


def test_what_begins_with_a_dash_but_is_no_option(heed):  # noqa: F811
    for words in (["-5"], ["-.5"], ["--", "--frob"], ["-a text"], ["--frob", "-"][1:]):
        fails(heed("translate", "x", *words), 1, "x does not exist")
    fails(heed("translate", "x", "--bea", "2", "1"), 1, "x does not exist")  # shortened


def test_heed_alone_shows_a_newcomer_three_commands(heed):  # noqa: F811
    status, out, err = heed()
    assert (status, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("  heed ")] == [
        "demo", "train", "translate",
    ]  # fmt: skip
    assert out.count("\n") <= 10


def test_help_and_version(heed):  # noqa: F811
    for words in ((), ("train",), ("data", "check")):
        asked = heed("help", *words)
        assert asked[0] == 0
        assert asked == heed(*words, "--help")
    assert heed("-V") == heed("--version") == (0, f"heed {package.__version__}\n", "")


def test_the_help_of_train_lists_all_options(heed):  # noqa: F811
    text = heed("train", "--help")[1]
    settings = [one.name for one in (*TRAINING, *MODEL)]
    settings += [option.name for task in TASKS.values() for option in task.options]
    assert [name for name in settings if f"  --{name.replace('_', '-')}" not in text] == []
    assert "docs/" not in text


def test_numbers_that_no_machine_can_count_to(heed, run_path):  # noqa: F811
    limit = f"must be at most {LARGEST_COUNT:,}. Received: "
    names = [one.name for one in TRAINING if one.kind is int and one.name != "seed"]
    for name in (*names, "width", "encoder_layers"):  # the model's are checked by its config
        option = f"--{name.replace('_', '-')}"
        fails(heed("train", "numbers", option, HUGE), 1, f"`{name}` {limit}")
    fails(heed("train", "numbers", "--seed", HUGE), 1, "`seed` must be")
    for name in (
        "--beam-size",
        "--top-k",
        "--max-length",
        "--n-best",
        "--batch-size",
        "--device-threads",
    ):
        fails(heed("translate", run_path, "1", "--temperature", "1", name, HUGE), 1, limit)
    fails(heed("average", run_path, "--last", HUGE), 1, f"--last {limit}")
    for name in ("--learning-rate", "--clip-norm"):
        fails(heed("train", "numbers", name, "inf"), 1, "must be a finite number")


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_commands_options_and_files(heed, shell):  # noqa: F811
    pytest.importorskip("shtab")
    status, out, err = heed("--print-completion", shell)
    assert (status, err) == (0, "")
    assert [
        word for word in ("translate", "num-key-value-heads", "catalogs") if word not in out
    ] == []


def test_completion_in_bash(heed, tmp_path):  # noqa: F811
    pytest.importorskip("shtab")
    (tmp_path / "heed.sh").write_text(heed("--print-completion", "bash")[1])
    program = (
        "source heed.sh; COMP_WORDS=(heed train --st); COMP_CWORD=2; _shtab_heed; echo ${COMPREPLY[@]};"
        "COMP_WORDS=(heed tr); COMP_CWORD=1; _shtab_heed; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "--steps\ntrain translate\n"


def test_completion_without_its_library(heed, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "shtab", None)
    fails(heed("--print-completion", "zsh"), 1, "--print-completion needs the shtab library: pip")


def test_the_package_says_where_a_name_is():
    for part in ("ops", "layers", "models", "inspect", "export", "seq2seq"):
        for name in getattr(package, part).__all__:
            if hasattr(package, name):
                assert name in (*package.__all__, "seq2seq")
                continue
            with pytest.raises(AttributeError, match=rf"`heed\.{part}\.{name}`"):
                getattr(package, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'frob'$"):
        package.frob  # noqa: B018


def test_saying_where_a_name_is_loads_nothing():
    code = "import sys, heed; hasattr(heed, 'Transformer'); print('keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
