"""Runs the exported model in this folder. It needs NumPy and the runtime of the format.

    python run.py TEXT ...            translates each text, or each line of standard input
    python run.py --check IN OUT      writes the outputs for the arrays of an .npz file to another, to compare them

In Python: `Model(folder)` with `programs`, `translate` and `scores`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

VERSION = 1


class Model:
    """An exported model.

    Attributes:
        manifest: the contents of manifest.json.
        programs: functions by name, from arrays by name to arrays by name.
    """

    def __init__(self, folder: str | Path = ".", threads: int | None = None) -> None:
        self.folder = folder = Path(folder)
        self.manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if self.manifest["version"] > VERSION:
            raise SystemExit(
                f"{folder} is of format {self.manifest['version']}; this reads {VERSION}"
            )
        for name, file in self.manifest["files"].items():
            path = folder / name
            if not path.is_file() or _checksum(path) != file["sha256"]:
                raise SystemExit(f"{folder} is damaged: {name} is not as it was written")
        spec: Any = importlib.util.spec_from_file_location("runtime", folder / "runtime.py")
        runtime = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(runtime)
        self.programs: dict[str, Callable[..., Any]] = runtime.load(folder, threads)

    def translate(self, source: np.ndarray, longest: int | None = None) -> np.ndarray:
        """Decodes source ids (B, S) greedily to target ids (B, T), int32, padded after the end."""
        ids, longest = self.manifest["decoding"], longest or self.manifest["decoding"]["longest"]
        if "translate" in self.programs:
            return self.programs["translate"](source=source, max_length=int(longest))["tokens"]
        if "generate" in self.programs:
            nothing = np.zeros((len(source), 0), np.int32)
            return self.programs["generate"](prompt=nothing, max_length=int(longest))["tokens"]
        step = self._steps(source)
        tokens = np.full((len(source), 1), ids["start"], np.int32)
        going = np.ones(len(source), bool)
        steps: list[np.ndarray] = []
        while len(steps) < longest and going.any():
            logits = step(tokens)
            logits[:, [ids["pad"], ids["start"]]] = -np.inf
            tokens = np.where(going, logits.argmax(-1), ids["pad"]).astype(np.int32)[:, None]
            going &= tokens[:, 0] != ids["end"]
            steps.append(tokens)
        return np.concatenate(steps, axis=1)

    def scores(self, source: np.ndarray, read: np.ndarray) -> np.ndarray:
        """The scores (B, T, V) of the tokens that may follow each token of `read` (B, T), for source ids (B, S)."""
        step = self._steps(source)
        return np.stack([step(read[:, i : i + 1]) for i in range(read.shape[1])], axis=1)

    def _steps(self, source: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """A function from the next tokens (B, 1) to the scores (B, V) of those after them."""
        known: dict[str, np.ndarray] = {}
        index = 0
        if "encode" in self.programs:
            known = self.programs["encode"](source=source)
        program = self.manifest["programs"]["decode_step"]
        for name in program["growing"]:
            described = program["inputs"][name]
            known[name] = np.zeros((len(source), 0, *described["shape"][2:]), described["dtype"])
        known = {name: known[name] for name in program["inputs"] if name in known}

        def step(tokens: np.ndarray) -> np.ndarray:
            nonlocal index
            found = self.programs["decode_step"](tokens=tokens, index=np.int32(index), **known)
            index += 1
            known.update({name: x for name, x in found.items() if name != "logits"})
            return np.array(found["logits"], np.float32)

        return step

    def text(self, text: str) -> str:
        """The translation of a text."""
        if "texts" in self.programs:  # with the tokenizer inside
            return self.programs["texts"](text=[text])[0]
        ids = self.read(text)
        return self.write(self.translate(np.array([ids], np.int32))[0]) if ids else ""

    def read(self, text: str) -> list[int]:
        """The source ids of a text: of a number in digits, or from the model's tokenizer."""
        tokens, reads = self.manifest["tokens"], self.manifest["tokens"]["reads"]
        ids, text = {piece: i for i, piece in enumerate(tokens["source"])}, text.strip()
        if reads == "digits":
            digits = "".join(text.replace(",", "").split())
            if not (digits.isascii() and digits.isdigit() and len(digits.lstrip("0")) <= 6):
                raise SystemExit(f"a number from 0 to 999,999 was expected. Received: {text!r}")
            return [ids[piece] for piece in (tokens["language"], *reversed(str(int(digits))))]
        if not text:
            return []
        if tokens["source_model"]:
            import sentencepiece

            model = str(self.folder / tokens["source_model"])
            processor = sentencepiece.SentencePieceProcessor(model_file=model)
            pieces = processor.encode(text, out_type=str)
        else:
            pieces = text.split()
        found = [ids.get(piece, tokens["unknown"]) for piece in pieces]
        return [*found, self.manifest["decoding"]["end"]]

    def write(self, ids: Any) -> str:
        """The text of target ids, up to the end."""
        special, tokens = self.manifest["decoding"], self.manifest["tokens"]
        pieces = []
        for i in ids:
            if i == special["end"]:
                break
            if i not in (special["pad"], special["start"]):
                known = i != tokens["unknown"]
                pieces.append(tokens["target"][i] if known else "⁇")
        return "".join(pieces).replace("▁", " ").strip()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _check(model: Model, given: str, out: str) -> None:
    """Writes the outputs for the arrays of a file, and the seconds of a second run."""
    arrays = dict(np.load(given))
    found: Any
    if "read" in arrays and "decode_step" in model.programs:
        found = {"scores": model.scores(arrays["source"], arrays["read"])}
    elif "probabilities" in model.programs:
        found = model.programs["probabilities"](source=arrays["source"], target=arrays["written"])
    elif "read" in arrays:
        found = {}
    else:
        found = model.programs["serve"](**arrays)
    if "all" in arrays:
        longest, parts = int(arrays["longest"]), range(0, len(arrays["all"]), 64)

        def translate_all() -> Any:
            return [model.translate(arrays["all"][i : i + 64], longest) for i in parts]

        run = translate_all
    else:

        def run() -> Any:
            return model.programs["serve"](**arrays)

    answers = run()
    began = time.monotonic()
    run()
    found["seconds"] = np.float64(time.monotonic() - began)
    if "all" in arrays:
        rows = [np.pad(x, ((0, 0), (0, longest - x.shape[1]))) for x in answers]
        found["tokens"] = np.concatenate(rows)
    np.savez(out, **found)


def main() -> None:
    """Checks or translates."""
    model = Model(Path(__file__).parent)
    if sys.argv[1:2] == ["--check"]:
        _check(model, *sys.argv[2:])
        return
    if not (model.manifest["tokens"] or {}).get("reads"):
        raise SystemExit("this model has no texts: use Model(folder).programs in Python")
    for text in sys.argv[1:] or map(str.strip, sys.stdin):
        print(model.text(text), flush=True)


if __name__ == "__main__":
    main()
