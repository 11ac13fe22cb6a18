"""Runs the exported model in this folder. It needs NumPy and the runtime of the format.

    python run.py TEXT ...            translates each text, or each line of standard input
    python run.py --check IN OUT      writes the outputs for the arrays of an .npz file to another, to compare them

A line that cannot be translated gives a blank line; it is named on standard error, as is one whose translation is cut.
In Python: `Model(folder)` with `programs`, `translate`, `scores` and `text`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

VERSION = 1
_NUMBER = re.compile(r"[0-9]+(?: +[0-9]+)*|[0-9]{1,3}(?:,[0-9]{3})+")
_DIGITS = 6
# Bytes may spell a line break, which would start another line.
_NO_BREAKS = str.maketrans("\r\n", "  ")


class TextError(ValueError):
    """A text that the model cannot translate; the message says why."""


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
        """Decode source ids (B, S) greedily to target ids (B, T), int32, padded after the end."""
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
        """Score the tokens that may follow each token of `read` (B, T), for source ids (B, S): (B, T, V)."""
        step = self._steps(source)
        return np.stack([step(read[:, i : i + 1]) for i in range(read.shape[1])], axis=1)

    def _steps(self, source: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function from the next tokens (B, 1) to the scores (B, V) of those after them."""
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
        """Return the translation of a text, that of `heed translate`; "" for a blank one.

        Raises:
            TextError: if it cannot be translated.
        """
        return self.answer(text)[0]

    def answer(self, text: str) -> tuple[str, int]:
        """Return the translation of a text; and if it was cut at the most tokens, their number, else 0."""
        ids = self.read(text)
        if not ids:
            return "", 0
        found = self.translate(np.array([ids], np.int32))[0].tolist()
        special = self.manifest["decoding"]
        ended = special["end"] in found or set(found) == {special["pad"]}
        return self.write(found), 0 if ended else sum(i != special["pad"] for i in found)

    def read(self, text: str) -> list[int]:
        """Return the source ids of a text, none for a blank one: of a number in digits, or from the model's tokenizer.

        Raises:
            TextError: if it cannot be translated.
        """
        tokens, special = self.manifest["tokens"], self.manifest["decoding"]
        if not text.strip():
            return []
        if tokens["reads"] == "digits":
            pieces = [tokens["language"], *reversed(_read_number(text))]
            return [tokens["source"].index(piece) for piece in pieces]
        try:
            text.encode()
        except UnicodeEncodeError:  # bytes that were no text when they were read
            raise TextError("a text must be UTF-8") from None
        text = normalize(text, tokens.get("normalization"))
        library, ids = self._tokenizer(tokens["source_model"])
        # The library would join unknown words.
        parts = text.replace("▁", " ").split(" ") if tokens["mark_is_space"] else [text]
        found = [*(ids[i] for part in parts for i in library.encode(part)), special["end"]]
        if len(found) == 1:
            raise TextError("a text must have letters that the tokenizer keeps")
        if len(found) > tokens["longest_source"]:
            raise TextError(
                f"a text must have at most {tokens['longest_source']} tokens, its end included. "
                f"Received: {len(found):,}"
            )
        return found

    def write(self, ids: Any) -> str:
        """Return the text of target ids, up to the end."""
        special, tokens = self.manifest["decoding"], self.manifest["tokens"]
        kept = []
        for i in map(int, ids):
            if i == special["end"]:
                break
            if i not in (special["pad"], special["start"]):
                kept.append(i)
        if tokens["reads"] == "digits":  # all pieces are text
            pieces = (
                tokens["unknown_text"] if i == tokens["unknown"] else tokens["target"][i]
                for i in kept
            )
            return "".join(pieces).replace("▁", " ").removeprefix(" ")
        library, ours = self._tokenizer(tokens["target_model"])
        theirs = {i: place for place, i in enumerate(ours)}
        text = str(library.decode([theirs[i] for i in kept if i in theirs]))
        return text.strip(" ") if tokens["target_unit"] == "word" else text

    @functools.cache  # noqa: B019 (a model lives as long as its program)
    def _tokenizer(self, name: str) -> tuple[Any, list[int]]:
        """Return the SentencePiece tokenizer in a file, and the model's id of each of its pieces."""
        try:
            import sentencepiece
        except ImportError:
            raise SystemExit(
                "texts need the sentencepiece package: pip install sentencepiece"
            ) from None
        library = sentencepiece.SentencePieceProcessor(model_file=str(self.folder / name))
        special, unknown = self.manifest["decoding"], self.manifest["tokens"]["unknown"]
        known = {
            library.pad_id(): special["pad"],
            library.bos_id(): special["start"],
            library.eos_id(): special["end"],
            library.unk_id(): unknown,
        }
        others = iter(range(4, 4 + library.get_piece_size()))
        return library, [
            known[i] if i in known else next(others) for i in range(library.get_piece_size())
        ]


def normalize(text: str, rules: Mapping[str, Any] | None) -> str:
    """Return the text as the model's training read it: in a Unicode form, with plain spaces, and none at the ends.

    The `rules` are "form", a form of Unicode or None, and "spaces", characters that count as a space; or None.
    """
    if rules and rules["form"]:
        text = unicodedata.normalize(rules["form"], text)
    spaces = rules["spaces"] if rules else ""
    return text.translate(str.maketrans(spaces, " " * len(spaces))).strip()


def _read_number(text: str) -> str:
    """Return the digits of a number from 0 to 999,999."""
    number = text.strip().replace("\t", " ")
    digits = number.replace(" ", "").replace(",", "").lstrip("0") or "0"
    if not _NUMBER.fullmatch(number) or len(digits) > _DIGITS:
        raise TextError(f"a number from 0 to 999,999 was expected. Received: {number[:40]!r}")
    return digits


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _check(model: Model, given: str, out: str) -> None:
    """Write the outputs for the arrays of a file, and the seconds of a second run."""
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

    longest = int(arrays.get("longest", 0))

    def run() -> Any:
        if "all" not in arrays:
            return model.programs["serve"](**arrays)
        parts = range(0, len(arrays["all"]), 64)
        return [model.translate(arrays["all"][i : i + 64], longest) for i in parts]

    answers = run()
    began = time.monotonic()
    run()
    found["seconds"] = np.float64(time.monotonic() - began)
    if "all" in arrays:
        rows = [np.pad(x, ((0, 0), (0, longest - x.shape[1]))) for x in answers]
        found["tokens"] = np.concatenate(rows)
    np.savez(out, **found)


def _lines() -> Iterator[str]:
    """Yield the lines of standard input. Only a line feed ends one; bytes that are no text become lone surrogates."""
    for number, line in enumerate(sys.stdin.buffer):
        text = line.decode("utf-8", "surrogateescape")
        yield text if number else text.removeprefix("\ufeff")


def main() -> int:
    """Check or translate; return the exit status."""
    model = Model(Path(__file__).parent)
    if sys.argv[1:2] == ["--check"]:
        _check(model, *sys.argv[2:])
        return 0
    if not (model.manifest["tokens"] or {}).get("reads"):
        raise SystemExit("this model has no texts: use Model(folder).programs in Python")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    texts, status = sys.argv[1:], 0
    for number, text in enumerate(texts or _lines(), 1):
        answer, note = "", ""
        try:
            answer, cut = model.answer(text)
            if cut:
                note = f"the translation is cut at {cut:,} tokens, the most of this model"
        except TextError as error:
            note, status = str(error), int(bool(texts))  # lines after this one are translated
        print(answer.translate(_NO_BREAKS), flush=True)
        if note:
            what = "text" if texts else "line"
            print(f"{what} {number:,}: {note}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
