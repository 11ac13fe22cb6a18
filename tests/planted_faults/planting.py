"""Planting faults in a copy of the tree, and running the nearest tests there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from tests.planted_faults.fault import Fault

ROOT = Path(__file__).resolve().parents[2]
_PARTS = (
    *("src", "native", "tests", "benchmarks", "examples", "docs"),
    *("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
)
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "_lib")
# heed comes from the copy, however the one in use was installed: an editable install goes before PYTHONPATH.
CUSTOMIZE = """
import sys
from importlib.machinery import PathFinder

class Copy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "heed" or name.startswith("heed."):
            return PathFinder.find_spec(name, path or [{source!r}], target)

sys.meta_path.insert(0, Copy)
"""


@dataclass(frozen=True)
class Outcome:
    """The outcome for one fault.

    Attributes:
        fault: which one.
        noticed_by: the test that failed first, or None.
        problem: why the question has no answer, or None.
        seconds: how long it took, building included.
    """

    fault: Fault
    noticed_by: str | None
    problem: str | None
    seconds: float

    @property
    def verdict(self) -> str:
        """One or two words for a table."""
        if self.problem:
            return "no answer"
        return "noticed" if self.noticed_by else "nobody noticed"


class Copy:
    """A copy of a tree.

    Args:
        folder: where, an empty folder.
        root: of what.
        library: the folder of the native library that is in use, or None.
    """

    def __init__(self, folder: Path, root: Path = ROOT, library: Path | None = None) -> None:
        self.root = folder / "tree"
        self.root.mkdir()
        for name in _PARTS:
            if (root / name).is_dir():
                shutil.copytree(root / name, self.root / name, ignore=_LEFT_OUT)
            elif (root / name).exists():
                shutil.copy2(root / name, self.root / name)
        self._build = folder / "build"
        self._library = self.root / "src/heed/_lib"
        if library is not None:
            shutil.copytree(library, self._library)
        hook = folder / "hook"
        hook.mkdir()
        customize = CUSTOMIZE.format(source=str(self.root / "src"))
        (hook / "sitecustomize.py").write_text(customize, encoding="utf-8")
        paths = [str(hook), os.environ.get("PYTHONPATH", "")]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            # Sources change within a second, which the times in compiled files would not tell.
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Put the fault into the sources inside the block, and into the library if it is one of the library.

        Raises:
            subprocess.CalledProcessError: if the library does not build with it.
        """
        path = self.root / fault.file
        source = path.read_text(encoding="utf-8")
        fault.plant(self.root)
        before = self._library.with_name("_lib_before")
        try:
            if fault.native:
                shutil.copytree(self._library, before)
                self._make()
            yield
        finally:
            path.write_text(source, encoding="utf-8")
            if before.exists():
                shutil.rmtree(self._library)
                before.rename(self._library)

    def _make(self) -> None:
        """Build the libraries; what was built before and has not changed is taken as it is."""
        make = ["cmake", "--build", str(self._build)]
        for command in (["cmake", "-S", str(self.root / "native"), "-B", str(self._build)], make):
            subprocess.run(command, capture_output=True, text=True, check=True)
        for built in self._build.glob("libheed_*.so"):
            shutil.copy2(built, self._library)

    def test(
        self, tests: Sequence[str], limit: float, *options: str, backend: str = "tensorflow"
    ) -> tuple[int, list[str]]:
        """Runs tests in the copy.

        Args:
            tests: files, or names of tests. Slow ones are left out: the default set must notice each fault.
            limit: seconds.
            options: of pytest.
            backend: of Keras.

        Returns:
            The exit status of pytest, and the names of the tests that failed.

        Raises:
            subprocess.TimeoutExpired: if they take longer.
        """
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:xdist"]
        child = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", *options, *tests],
            cwd=self.root,
            env={**self._environment, "KERAS_BACKEND": backend},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            told = child.communicate(timeout=limit)[0]
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)  # the children of the tests too
            child.communicate()
            raise
        lines = (line.partition(" ") for line in told.splitlines())
        failed = [rest for word, _, rest in lines if word in ("FAILED", "ERROR")]
        return child.returncode, [name.partition(" - ")[0] for name in failed]

    def try_fault(self, fault: Fault, limit: float) -> Outcome:
        """Plant one fault, run the nearest tests until one fails, and take it out again."""
        began = time.monotonic()
        noticed_by = problem = None
        try:
            with self.planted(fault):
                status, failed = self.test(fault.tests, limit, "-x", backend=fault.backend)
            if status < 0 or (status and not failed):
                # A crash of the interpreter is noticed too, and pytest cannot say where.
                crashed = status < 0
                noticed_by = f"the end of Python by signal {-status}" if crashed else None
                problem = None if crashed else f"pytest ends with {status} and names no test"
            elif status:
                noticed_by = failed[0]
        except subprocess.TimeoutExpired:
            problem = f"the tests take longer than {limit:.0f} s"
        except subprocess.CalledProcessError as error:
            problem = f"it does not build: {(error.stderr or error.stdout).strip()[-300:]}"
        return Outcome(fault, noticed_by, problem, time.monotonic() - began)


def try_faults(
    faults: Sequence[Fault],
    *,
    jobs: int = 1,
    limit: float = 900,
    library: Path | None = None,
    root: Path = ROOT,
    tell: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Plant each fault and run its tests; then run those that failed without any fault.

    Args:
        faults: which ones.
        jobs: how many copies of the tree are worked in at a time.
        limit: seconds for the tests of one fault.
        library: see `Copy`.
        root: of the tree.
        tell: is called with each outcome as soon as it is known.

    Returns:
        The outcomes in the order of `faults`. A test that fails without the fault as well has not noticed it.
    """
    with TemporaryDirectory(prefix="heed-planted-faults-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for job in range(jobs):
            place = Path(folder) / str(job)
            place.mkdir()
            copies.put(Copy(place, root, library))

        def work(fault: Fault) -> Outcome:
            copy = copies.get()
            try:
                return copy.try_fault(fault, limit)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(work, fault) for fault in faults]
            for future in as_completed(futures):
                tell(future.result())
        outcomes = [future.result() for future in futures]
        copy = copies.get()
        always = set()
        for backend in {fault.backend for fault in faults}:
            tests = [x.noticed_by or "" for x in outcomes if x.fault.backend == backend]
            always |= {(backend, test) for test in _failing(copy, tests, limit, backend)}
    return [
        replace(outcome, noticed_by=None, problem=f"{outcome.noticed_by} fails without it too")
        if (outcome.fault.backend, outcome.noticed_by) in always
        else outcome
        for outcome in outcomes
    ]


def _failing(copy: Copy, tests: Sequence[str], limit: float, backend: str) -> set[str]:
    """Return which of these tests fail in a copy without a fault, on a backend of Keras.

    Raises:
        RuntimeError: if they cannot be run.
    """
    # By function, with all parameters: some are not fit for a command line.
    functions = sorted({test.partition("[")[0] for test in tests if "::" in test})
    if not functions:
        return set()
    status, failed = copy.test(functions, limit * len(functions), backend=backend)
    if status not in (0, 1):
        raise RuntimeError(f"pytest ends with {status} where nothing is planted, for {functions}")
    return set(failed)
