"""The floors hold in src/heed, and each rule of the checker can fail."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import architecture

SOURCE = Path(__file__).parents[1] / "src" / "heed"


def test_heed_keeps_to_its_floors():
    found = architecture.breaches(SOURCE)
    assert not found, "\n" + "\n".join(found)


def test_modules_that_other_folders_import_have_no_underscore_and_others_have_one():
    found = architecture.wrong_doors(SOURCE)
    assert not found, "\n" + "\n".join(found)


def test_seq2seq_is_rooms_that_import_downwards():
    """No room is a heap, and no two rooms import each other, by whatever way round."""
    folder = SOURCE / "seq2seq"
    rooms = [path for path in [folder, *folder.rglob("*")] if path.is_dir()]
    assert {
        str(x): n for x in rooms if (n := len([*x.glob("[!_]*.py"), *x.glob("_[!_]*.py")])) > 16
    } == {}
    used = {}
    for name, path in architecture.modules_of(SOURCE).items():
        if name.startswith("heed.seq2seq."):
            room = name.split(".")[2]
            found = {x.module for x in architecture.imports_of(path, SOURCE)}
            found = {x.split(".")[2] for x in found if x.startswith("heed.seq2seq.")}
            used.setdefault(room, set()).update(found - {room})
    while free := [room for room, others in used.items() if not others & used.keys()]:
        for room in free:
            del used[room]
    assert used == {}


def test_test_files_are_named_after_what_they_test():
    """Four in five; others test what no single module does."""
    named, others = architecture.test_names(SOURCE.parents[1])
    assert len(named) >= 0.8 * (len(named) + len(others)), "\n" + "\n".join(others)


def test_a_match_holds_the_words_of_the_rule_and_no_sentence(tmp_path):
    good, bad = (
        "'one two three four five 6 s \\n x six'",
        "rf'one {y} two three' 'four five six seven'",
    )
    (example := tmp_path / "test_x.py").write_text(
        f"raises(E, match={good})\nraises(E, match={bad})"
    )
    assert architecture.long_matches(example, 6) == [f"test_x.py:2: {bad}"]
    files = (SOURCE.parents[1] / "tests").rglob("*.py")
    found = [place for path in files for place in architecture.long_matches(path, 7)]
    assert not found, "\n" + "\n".join(found)


def test_the_checker_reads_every_file_of_heed():
    assert len(list(SOURCE.rglob("*.py"))) > 5
    imports = architecture.imports_of(SOURCE / "__init__.py", SOURCE)
    assert any(found.module == "heed.ops.Mask" for found in imports)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("heed", "assert set(heed.__all__) <= set(dir(heed)) and not hasattr(heed, 'Transformer')"),
        ("heed.environment", "pass"),
        ("heed.cli", "pass"),
    ],
)
def test_import_is_lazy(module, names):
    """Nothing heavy loads before it is used, so that `heed --help` and `import heed` are quick."""
    heavy = ["keras", "tensorflow", "numpy", *sorted(architecture.EXTRA_PACKAGES)]
    code = f"import {module}, sys; {names}; print([x for x in {heavy} if x in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# The checker itself


def _tree(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "heed"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return package


GOOD = {
    "__init__.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from heed import ops
        __version__ = "1"
        """,
    "ops/__init__.py": "from heed.ops.mask import Mask\nfrom .mask import Mask as Also\n",
    "ops/mask.py": "import numpy as np\nfrom heed.ops import _plot\nclass Mask: pass\n",
    "ops/mask_rules.py": "class Dense: pass\ndef f(x):\n    return isinstance(x, Dense)\n",
    "ops/_plot.py": "from heed.figure import new_figure\n",
    "figure.py": "",
    "ops/backends/tensorflow/op.py": "import tensorflow as tf\n",
    "ops/backends/shared/plan.py": "class Group: pass\ndef _own(): pass\n",
    "ops/backends/tensorflow/portable/loop.py": "def _own(): pass\n",
    "layers/block.py": """
        import keras
        from heed import ops
        from ..ops import mask
        class Block:
            def __init__(self):
                self._heads = 1
        def split(block):
            return block._heads
        """,
    "models/model.py": "from heed.layers import block\nfrom . import other\n",
    "models/other.py": "",
    "seq2seq/training/training.py": "import tensorflow as tf\nfrom heed import __version__\n",
    "seq2seq/serving/app.py": "import fastapi\n",
    "seq2seq/text.py": "def split(text):\n    import sentencepiece\n",
    "cli.py": "def main():\n    from heed.seq2seq import training\n",
}


def test_a_good_tree_has_no_breach(tmp_path):
    assert architecture.breaches(_tree(tmp_path, GOOD)) == []


UPWARDS = [
    "from heed.layers import block",
    "from heed import layers",
    "from .. import layers",
    "from ..layers.block import Block",
    "import heed.layers.block",
    "def f():\n    from heed import layers",
    "import typing\nif typing.TYPE_CHECKING:\n    from heed import layers",
    "import importlib\nimportlib.import_module('heed.layers')",
]
PRIVATE = [
    "from heed.ops import _plot",
    "from heed.ops._plot import draw",
    "from ..ops._plot import f",
]
OF_A_RULE = (
    "from heed.ops.mask_rules import Dense\ndef f(x):\n    return isinstance(x, (int, Dense))"
)
OF_ITS_MODULE = "from heed.ops import {0}\nf = lambda x: isinstance(x, {0}.{1})"
UNKNOWN_PACKAGE = "which pyproject.toml does not bring"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        *(("ops/up.py", text, "`ops` (floor 2) imports `layers` (floor 3)") for text in UPWARDS),
        ("ops/up.py", "def f():\n    from heed import models", "ops/up.py:2: `ops` (floor 2)"),
        ("seq2seq/side.py", "from heed.export import save", "imports `export` (floor 5)"),
        ("acceleration.py", "from heed import inspect", "imports `inspect` (floor 4)"),
        ("layers/a.py", "import heed", "imports the whole package"),
        ("layers/a.py", "from heed import Mask", "through the package"),
        ("plugins/a.py", "", "`plugins` has no floor"),
        ("__init__.py", "from heed import ops", "imports `ops` eagerly"),
        ("layers/a.py", "import tensorflow as tf", "imports tensorflow"),
        ("models/a.py", "def f():\n    from tensorflow import nn", "a.py:2: imports tensorflow"),
        ("seq2seq/text.py", "import tensorflow", "imports tensorflow"),
        ("ops/a.py", "import tensorflow as tf", "imports tensorflow"),
        ("ops/a.py", "import torch", "imports torch: only ops/backends"),
        ("layers/a.py", "def f(x):\n    assert x", "layers/a.py:2: assert"),
        *(("layers/a.py", text, "a.py:1: imports `heed.ops._plot") for text in PRIVATE),
        ("layers/a.py", "from heed.ops.mask import _hidden", "`_hidden` is private to `ops`"),
        ("seq2seq/a.py", "import sentencepiece", "`sentencepiece` at import time"),
        ("seq2seq/a.py", "class A:\n    from tqdm import tqdm", "`tqdm` at import time"),
        ("ops/a.py", OF_A_RULE, "ops/a.py:3: isinstance of Dense"),
        *(
            ("layers/a.py", OF_ITS_MODULE.format(*names), f"isinstance of {'.'.join(names)}")
            for names in (("mask_rules", "Dense"), ("scores", "DotScore"))
        ),
        (
            "models/other.py",
            "f = lambda block: block._heads",
            "`block._heads`, which is private to",
        ),
        (
            "models/other.py",
            "from heed.models import model",
            "heed.models.model, heed.models.other",
        ),
        (
            "ops/_plot.py",
            "import typing\nif typing.TYPE_CHECKING:\n    from heed.ops import Mask",
            "import each other: heed.ops, heed.ops._plot, heed.ops.mask",
        ),
        ("ops/backends/jax/native/a.py", "class Group: pass", "`Group` has a twin in"),
        ("ops/backends/torch/portable/plan.py", "", "`plan` has a twin in ops/backends/shared"),
        ("ops/a.py", "import scipy", f"`scipy`, {UNKNOWN_PACKAGE}"),
        ("ops/a.py", "from typing_extensions import Unpack", UNKNOWN_PACKAGE),
    ],
)
def test_each_rule_can_fail(tmp_path, name, text, expected):
    found = architecture.breaches(_tree(tmp_path, {**GOOD, name: text}))
    assert len(found) == 1, found
    assert expected in found[0]


def test_each_wrong_door_is_named(tmp_path):
    files = {
        "ops/_mask.py": "from heed.ops import plot\n",
        "ops/plot.py": "",
        "ops/sizes.py": "",
        "ops/_own.py": "",
        "layers/_block.py": "def f():\n    from heed.ops._mask import Mask\nfrom heed.ops import numbers, sizes\n",
        "ops/numbers.py": "",
    }
    assert architecture.wrong_doors(_tree(tmp_path, files)) == [
        "heed.ops._mask begins with `_`, and other folders import it: heed/layers",
        "heed.ops.numbers has the name of a module of others",
        "heed.ops.plot: no other folder imports it, so its name begins with `_`",
    ]


def test_a_test_is_named_after_a_module_a_folder_or_a_part_of_the_repository(tmp_path):
    named = ["native/test_rows.py", "ops/test_mask.py", "ops/test_mask_saving.py", "test_docs.py"]
    named += ["test_ops.py", "test_reference.py"]
    others = ["layers/test_mask.py", "ops/test_masks.py", "ops/test_rows.py", "test_mask.py"]
    for name in [*(f"tests/{x}" for x in [*named, *others]), "tests/reference.py", "docs/a.md"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "rows.cc").touch()
    _tree(tmp_path / "src", {"ops/_mask.py": "", "layers/block.py": ""})
    assert architecture.test_names(tmp_path) == (named, others)


def test_a_class_of_the_same_name_is_no_rule(tmp_path):
    text = "import keras\nf = lambda x: isinstance(x, keras.layers.Dense)\n"
    assert architecture.breaches(_tree(tmp_path, {**GOOD, "layers/a.py": text})) == []


def test_the_extras_the_checker_knows_are_those_of_pyproject():
    text = (SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    lines = [
        line.strip().strip('",').split(">=")[0].replace("-", "_")
        for extra in ("demo", "export", "serve")
        for line in text.split(f"\n{extra} = [", 1)[1].split("]\n", 1)[0].splitlines()
    ]
    names = {line for line in lines if line and not line.startswith("heed_attention")}
    modules = {{"pyyaml": "yaml"}.get(name, name) for name in names}
    others = {"gguf", "keras_hub", "llama_cpp", "ray", "tokenizers"}
    assert modules | others == architecture.EXTRA_PACKAGES
    assert '\nray = ["heed-attention[demo]", "ray[' in text
    assert '\ngguf = ["heed-attention[demo]", "gguf>' in text
    assert re.search(r'\nhub = \["heed-attention\[demo\]", "keras-hub.*", "tokenizers', text)


NATIVE = SOURCE.parents[1] / "native"


def test_native_keeps_its_floors():
    assert architecture.native_breaches(NATIVE) == []
    assert len(list(NATIVE.rglob("*.cc"))) > 3  # it has read something


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("kernels/a.h", '#include "../adapters/tensorflow/b.h"', "of a higher floor"),
        ("simd/a.h", '#include "../kernels/b.h"', "of a higher floor"),
        ("include/heed.h", '#include "../attention.h"', "of a higher floor"),
        ("adapters/xla/a.h", '#include "../../attention.h"', "an adapter knows heed.h alone"),
        ("adapters/xla/a.h", '#include "../tensorflow/call.h"', "an adapter knows heed.h alone"),
        ("adapters/shared/a.h", '#include "../xla/a.h"', "an adapter knows heed.h alone"),
        ("kernels/a.h", "#include <algorithm>", "uses the compiler alone"),
        ("include/heed.h", "#include <cstdint>", "uses the compiler alone"),
        ("other/a.h", "", "has no floor"),
        ("adapters/a.h", "", "has no floor"),
        ("a.cc", "int f() {\n  static const int x = g();\n  return x;\n}", "a lazy static"),
    ],
)
def test_each_native_rule_can_fail(tmp_path, name, text, expected):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    found = architecture.native_breaches(tmp_path)
    assert len(found) == 1, found
    assert expected in found[0]
