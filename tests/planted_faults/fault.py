"""One planted fault."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A mistake that is easy to make.

    Attributes:
        name: what is wrong, in words.
        file: where, from the root of the repository.
        text: what stands there; it must stand there once.
        planted: what stands there instead.
        tests: the test files nearest to it, or `file::test` where one test of a long file is meant.
        backend: of Keras, on which they run.
    """

    name: str
    file: str
    text: str
    planted: str
    tests: tuple[str, ...]
    backend: str = "tensorflow"

    @property
    def native(self) -> bool:
        """Whether the native library must be built anew."""
        return self.file.startswith("native/")

    def problems(self, root: Path) -> list[str]:
        """Return why it cannot be planted in the tree at `root`; empty if it can."""
        found = []
        path = root / self.file
        count = path.read_text(encoding="utf-8").count(self.text) if path.is_file() else 0
        if count != 1:
            found.append(
                f"{self.name}: {self.file} holds its text {count} times, not once: {self.text!r}"
            )
        if self.text == self.planted:
            found.append(f"{self.name}: nothing would change")
        for test in self.tests:
            file, *function = test.split("::")
            source = (root / file).read_text(encoding="utf-8") if (root / file).is_file() else ""
            if not source or not all(re.search(rf"^\s*def {f}\(", source, re.M) for f in function):
                found.append(f"{self.name}: its test {test} is not there")
        return found

    def plant(self, root: Path) -> None:
        """Put the fault into the tree at `root`."""
        path = root / self.file
        source = path.read_text(encoding="utf-8")
        path.write_text(source.replace(self.text, self.planted), encoding="utf-8")
