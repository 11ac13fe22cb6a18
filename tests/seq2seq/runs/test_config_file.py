"""A training in YAML: what it sets, and one line for each mistake."""

import dataclasses
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import TaskError, UsageError
from heed.seq2seq import RunFolder, TrainingOptions, read_config
from heed.seq2seq.options.settings import MODEL, TRAINING
from heed.seq2seq.runs._architectures import ARCHITECTURES, model_values
from tests.seq2seq import tiny


def test_the_table_of_settings_is_complete_and_of_the_right_kinds():
    """A field that is added to the options or to a config must be offered to people too."""
    fields = {field.name: field.default for field in dataclasses.fields(TrainingOptions)}
    assert [setting.name for setting in TRAINING] == list(fields)
    for setting in TRAINING:
        assert setting.name == "warmup_steps" or type(fields[setting.name]) is setting.kind
    names = {name for one in ARCHITECTURES.values() for name in one.options}
    assert {setting.name for setting in MODEL} == names
    defaults = {
        field.name: field.default
        for one in ARCHITECTURES.values()
        for field in dataclasses.fields(one.config)
    }
    for setting in MODEL:
        assert defaults[setting.name] is None or type(defaults[setting.name]) is setting.kind


def lists(depth):
    """Return a few bytes of YAML whose aliases stand for 9 ** (depth + 1) words."""
    if not depth:
        return "&a0 [x, x, x, x, x, x, x, x, x]"
    return f"&a{depth} [{lists(depth - 1)}{f', *a{depth - 1}' * 8}]"


def merges(depth):
    """Return the same with merge keys."""
    if not depth:
        return "&m0 {steps: 1, seed: 2}"
    return f"&m{depth} {{<<: [{merges(depth - 1)}{f', *m{depth - 1}' * 8}], keep: {depth + 1}}}"


@pytest.fixture
def read(tmp_path):
    def of(text):
        path = tmp_path / "train.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return dict(read_config(path).values)

    return of


def test_what_a_file_sets(read, tmp_path):
    found = read(
        """
        task: text
        run: runs/a
        data: {source: a.txt, vocabulary_size: 100}
        model: {width: 32, dropout: 0, gated: true, num_key_value_heads: }
        training:
          learning_rate: 1e-3
          validate_with: bleu
        """
    )
    assert found == {
        "task": "text", "run": type(tmp_path)("runs/a"), "source": type(tmp_path)("a.txt"), "vocabulary_size": 100,
        "width": 32, "dropout": 0.0, "gated": True, "learning_rate": 1e-3, "validate_with": "bleu",
    }  # fmt: skip
    assert read("") == {}
    assert read("\ufefftask: numbers") == {"task": "numbers"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {setps: 5}", "`training.setps` is unknown: did you mean `steps`?"),
        ("trainig: {}", "`trainig` is unknown: did you mean `training`?"),
        ("steps: 5", "`steps` is unknown: it belongs under `training`"),
        ("model: {steps: 5}", "`model.steps` is unknown: it belongs under `training`"),
        ("qqq: 5", "`qqq` is unknown"),
        ("training: 5", "`training` must be keys with values. Received: 5"),
        ("- a", "it must be keys with values. Received: ['a']"),
        ("training: {steps: ten}", "`training.steps` must be an integer. Received: 'ten'"),
        ("model: {width: 1.5}", "`model.width` must be an integer. Received: 1.5"),
        ("model: {width: true}", "`model.width` must be an integer. Received: True"),
        ("model: {gated: 1}", "`model.gated` must be true or false. Received: 1"),
        ("data: {source: 5}", "`data.source` must be text. Received: 5"),
        ("training: {steps: 0}", "`steps` must be an integer >= 1. Received: steps=0"),
        ("training: {learning_rate: .nan}", "`learning_rate` must be a finite number > 0"),
        ("training: {schedule: x}", "`schedule` must be one of 'cosine', 'inverse_sqrt', 'const"),
        ("data: {corpora: 5}", "`data.corpora` must be a list. Received: 5"),
        ("data: {corpora: [a]}", "`data.corpora.0` must be keys with values. Received: 'a'"),
        ("data: {corpora: [{sorce: a}]}", "`data.corpora.0.sorce` is unknown: did you mean `sou"),
        ("data: {valid: [{weight: 1}]}", "`data.valid.0.weight` is unknown"),
        ("data: {test: a.tsv}", "`data.test` must be a list. Received: 'a.tsv'"),
        ("data: {corpora: [{weight: a}]}", "`data.corpora.0.weight` must be a number. Receiv"),
        ("a: b: c", ", line 1 is not YAML: mapping values are not allowed here"),
        ("task: [", "is not YAML"),
        ("task: numbers\non: 1", ", line 2: a key must be text. Received: True"),
        ("model: {width: 5, width: 6}", ", line 1: duplicate key `width`"),
        ("task: \x01", "is not YAML: special characters are not allowed"),
        (b"task: \xff", "is not UTF-8"),
        ("[" * 600, "is not YAML"),
        ("!!python/name:os.system ''", "is not YAML: could not determine a constructor"),
        ("training: {steps: 2020-13-45}", "is not YAML: month must be in 1..12"),
        ("model: {width: [" + "1, " * 1000 + "]}", "..."),
        (f"task: {lists(8)}", "`task` must be text. Received: [["),
        (f"training: {{steps: {lists(8)}}}", "`training.steps` must be an integer. Received: [["),
        (f"data: {{corpora: {lists(8)}}}", "`data.corpora.0` must be keys with values. Received"),
        (f"? {lists(8)}\n: 1", ", line 1: a key must be text. Received: [["),
        ("training: &a {steps: *a}", "`training.steps` must be an integer. Received: {'steps'"),
        ("training: {steps: 0x" + "f" * 5000 + "}", "must have at most 100 characters. Received"),
        ("model: {gated: 1" + ":59" * 2000 + ".5}", "a value must have at most 100 characters"),
        ("task: " + "x" * 5000, ", line 1: a value must have at most 4,096 characters. Receiv"),
        ("training: {" + "x" * 500 + ": 1}", "a key must have at most 80 characters. Received"),
        ("task: *" + "x" * 500, "is not YAML: found undefined alias"),
        ('run: "a\\0b"', ", line 1: a value must be Unicode text without the character 0"),
        ('run: "\\ud800"', ", line 1: a value must be Unicode text without the character 0"),
        ("training: {<<: 5}", ", line 1: `<<` must name keys with values, as *name does"),
        ("training: {<<: {setps: 1}}", "`training.setps` is unknown: did you mean `steps`?"),
        ("lr: 1", "`lr` is unknown: did you mean `training.learning_rate`?"),
        ("data: {corpora: [{src: a}]}", "`data.corpora.0.src` is unknown: did you mean `source`?"),
        ("run: [1]", "`run` must be text. Received: [1]"),
    ],
)
def test_mistakes(read, tmp_path, text, message):
    with pytest.raises(UsageError) as caught:
        read(text)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'train.yaml'}")
    assert message in said
    assert len(said) < 400


def test_several_corpora(read):
    found = read("data: {corpora: [{source: a.tsv}, {source: b, target: c, weight: 2}]}")
    assert found["corpora"] == [
        {"source": Path("a.tsv")},
        {"source": Path("b"), "target": Path("c"), "weight": 2.0},
    ]


def test_every_path_may_begin_at_home(read, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    found = read(
        "run: ~/r\ninit_from: hub:~/p\n"
        "data: {source: ~/a, source_tokenizer: ~/m, target_language: ~/x, corpora: [{source: ~/b, alignment: ~/c}],"
        " valid: [{source: ~/v}], test: [{target: ~nobody-here/t}]}"
    )
    assert found == {
        "run": Path("/home/me/r"),
        "init_from": "hub:/home/me/p",
        "source": Path("/home/me/a"),
        "source_tokenizer": Path("/home/me/m"),
        "target_language": "~/x",
        "corpora": [{"source": Path("/home/me/b"), "alignment": Path("/home/me/c")}],
        "valid": [{"source": Path("/home/me/v")}],
        "test": [{"target": Path("~nobody-here/t")}],
    }


def test_merge_keys(read):
    """Own keys come first, then those of the first alias; none is read twice."""
    found = read(
        """
        data:
          corpora:
            - &common {source: a.tsv, weight: 2, target_language: de}
            - {weight: 3, <<: *common, source: b.tsv}
        training: {<<: [&a {steps: 5, seed: 1}, {steps: 6, keep: 4}], seed: 7}
        model: &m {<<: *m, width: 8}
        """
    )
    assert found == {
        "corpora": [
            {"source": Path("a.tsv"), "weight": 2.0, "target_language": "de"},
            {"source": Path("b.tsv"), "weight": 3.0, "target_language": "de"},
        ],
        "steps": 5, "seed": 7, "keep": 4, "width": 8,
    }  # fmt: skip
    assert read(f"training: {merges(8)}") == {"steps": 1, "seed": 2, "keep": 9}
    with pytest.raises(TaskError, match="line 1: duplicate key `seed`"):
        read("training: {<<: {seed: 1}, seed: 2, seed: 3}")


def test_a_missing_file(tmp_path):
    with pytest.raises(TaskError, match=r"cannot read .*no\.yaml"):
        read_config(tmp_path / "no.yaml")


_NAMES = st.sampled_from([*(one.name for one in TRAINING + MODEL), "task", "x", ""])
_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(st.dictionaries(_NAMES, _VALUES | st.dictionaries(_NAMES, _VALUES)))
def test_any_content_is_taken_or_one_line(tmp_path_factory, content):
    """Accepted values have the right types."""
    import yaml

    path = tmp_path_factory.mktemp("config") / "a.yaml"
    path.write_text(yaml.safe_dump({"training": content}), encoding="utf-8")
    kinds = {one.name: one.kind for one in TRAINING}
    try:
        found = read_config(path).values
    except TaskError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert all(type(value) is kinds[name] for name, value in found.items())
        assert all(math.isfinite(value) for value in found.values() if isinstance(value, float))


def test_a_value_of_the_file_that_the_model_refuses_names_the_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("model: {width: 6}")
    config = read_config(path)
    with pytest.raises(TaskError, match=r"a.yaml: .*`width`"), config.name_file_in_errors():
        tiny.start(tmp_path / "run", width=6, num_heads=4)
    with pytest.raises(TaskError, match=r"^`dropout` must"), config.name_file_in_errors():
        tiny.start(tmp_path / "run", dropout=2.0)


def test_the_run_keeps_the_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("model: {width: 8}  # small")
    run = tiny.start(tmp_path / "run", config_file=read_config(path))
    assert (run.path / "train.yaml").read_bytes() == path.read_bytes()
    assert RunFolder.open(run.path).read("train.yaml") == path.read_bytes()


DOCS = Path(__file__).parents[3] / "docs"


def test_the_documentation_lists_every_setting_with_what_it_is():
    page = (DOCS / "reference" / "settings.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("|")]
    told = {name.strip(" `"): text.strip() for name, text in rows}
    for setting in TRAINING + MODEL:
        assert told.get(setting.name) == setting.help


def test_the_files_of_the_documentation_are_some(tmp_path):
    path = tmp_path / "train.yaml"
    found = []
    page = (DOCS / "command-line.md").read_text()
    for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        path.write_text(text)
        found.append(dict(read_config(path).values))
    assert [one["target_language"] for one in found[0]["corpora"]] == ["de", "fr"]
    values = found[-1]
    assert {"task", "source", "preset", "position", "batch_tokens"} <= set(values)
    model = {one.name: values[one.name] for one in MODEL if one.name in values}
    assert model_values("transformer", values["preset"], {}, model)["num_heads"] == 4
