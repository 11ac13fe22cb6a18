"""Functions of other libraries are replaced and put back, whoever else patches them meanwhile."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from heed.patching import ContextPatch, Patch, Replacement, SleepingPatch, activate, awake


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Yield a module with a function and two classes, one of which inherits its method."""
    module = ModuleType("library")
    source = """
def f(x):
    return (x,)

class Base:
    def method(self, x):
        return (x,)

    @staticmethod
    def static(x):
        return (x,)

class Derived(Base):
    pass
"""
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, "library", module)
    yield module
    assert module.f(0) == module.Base().method(0) == module.Base.static(0) == (0,)
    assert "method" not in vars(module.Derived)


def adds(word: str, *parameters: str) -> Replacement:
    """Add a word to what the original returns."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (*original(*args, **kwargs), word)

    return Replacement(make, parameters or None)


def test_install_and_uninstall(library: ModuleType) -> None:
    original, patch = library.f, Patch(library, "f", adds("one"))
    for _ in range(2):
        assert not patch.installed
        patch.install()
        assert patch.installed
        assert library.f(1) == (1, "one")
        assert library.f.__name__ == "f"
        patch.uninstall()
        assert library.f is original
    patch.uninstall()
    assert library.f is original


def test_each_install_needs_an_uninstall(library: ModuleType) -> None:
    original, patch = library.f, Patch(library, "f", adds("one"))
    patch.install()
    patch.install()
    patch.uninstall()
    assert library.f(1) == (1, "one")
    patch.uninstall()
    assert library.f is original


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_users_stop_in_any_order(library: ModuleType, order: tuple[int, ...]) -> None:
    original = library.f
    patches = [Patch(library, "f", adds(word)) for word in "abc"]
    for patch in patches:
        patch.install()
    left = list("abc")
    assert library.f(1) == (1, *left)
    for number in order:
        patches[number].uninstall()
        left.remove("abc"[number])
        assert library.f(1) == (1, *left)
    assert library.f is original


def test_methods_that_a_class_inherits_or_has_as_static(library: ModuleType) -> None:
    static = vars(library.Base)["static"]
    patches = [
        Patch(library.Derived, "method", adds("d")),
        Patch(library.Base, "static", adds("s")),
    ]
    for patch in patches:
        patch.install()
    assert library.Derived().method(1) == (1, "d")
    assert library.Base().method(1) == (1,)
    for patch in patches:
        patch.uninstall()
    assert "method" not in vars(library.Derived)
    assert vars(library.Base)["static"] is static


def test_a_wrapper_of_another_library_stays(library: ModuleType) -> None:
    patch, other = Patch(library, "f", adds("one")), Patch(library, "f", adds("two"))
    original = library.f
    patch.install()
    ours = library.f
    library.f = theirs = lambda x: (*ours(x), "theirs")
    patch.uninstall()
    assert library.f is theirs
    assert library.f(1) == (1, "theirs")
    for each in (patch, other):
        each.install()
    assert library.f(1) == (1, "one", "two", "theirs")
    patch.uninstall()
    library.f = ours
    assert library.f(1) == (1, "two")
    other.uninstall()
    assert library.f is original


def test_a_function_that_another_library_put_back_is_patched_again(library: ModuleType) -> None:
    patch, original = Patch(library, "f", adds("one")), library.f
    patch.install()
    library.f = lambda x: (x, "theirs")
    patch.uninstall()
    library.f = original
    patch.install()
    assert library.f(1) == (1, "one")
    patch.uninstall()
    assert library.f is original


def test_copies_in_other_modules(library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = ModuleType("copies")
    monkeypatch.setitem(sys.modules, "copies", copies)
    copies.f, copies.g = original, _ = library.f, library.f  # type: ignore[attr-defined]
    alone, everywhere = (Patch(library, "f", adds(x), copies=x == "all") for x in ("one", "all"))
    alone.install()
    assert copies.f is original
    everywhere.install()
    assert copies.f(1) == library.f(1) == (1, "one", "all")
    assert copies.g is original  # under another name
    alone.uninstall()
    assert copies.f(1) == (1, "all")
    everywhere.uninstall()
    assert copies.f is library.f is original


def test_another_signature_is_refused(library: ModuleType) -> None:
    original = library.f
    patch = Patch(library, "f", adds("one", "x", "y"), "library's f")
    expected = "library's f: expected the parameters ('x', 'y'), found ('x',)"
    assert patch.find_problem() == expected
    with pytest.raises(RuntimeError) as error:
        patch.install()
    assert str(error.value) == expected
    assert library.f is original
    fitting = Patch(library, "f", Replacement(lambda f: f, ("x",), ("y",)))
    assert fitting.find_problem() is None


def test_what_is_missing_or_of_another_package_is_refused(library: ModuleType) -> None:
    missing = Patch(library, "g", adds("one"))
    assert missing.find_problem() == "library.g: expected a function, found nothing"

    @functools.wraps(np.mean)
    def theirs(*args: Any) -> Any:
        return np.mean(*args)

    library.mean, library.seven = theirs, 7  # type: ignore[attr-defined]
    found = Patch(library, "mean", adds("one"), package=np).find_problem()
    assert found == (
        f"library.mean: expected numpy's own function, found one that replaced it, of {__file__}"
    )
    number = Patch(library, "seven", adds("one"), package=np).find_problem()
    assert number == "library.seven: expected a function, found 7"


def test_a_patched_original_is_checked_as_it_was(library: ModuleType) -> None:
    first, second = (Patch(library, "f", adds(word, "x")) for word in "ab")
    first.install()
    assert second.find_problem() is None
    first.uninstall()


def test_threads_patch_at_once(library: ModuleType) -> None:
    original, wrong = library.f, []

    def work(word: str) -> None:
        patch = Patch(library, "f", adds(word))
        for number in range(200):
            patch.install()
            if word not in library.f(number):
                wrong.append(word)
            patch.uninstall()
            if word in library.f(number):
                wrong.append(f"still {word}")

    threads = [threading.Thread(target=work, args=(word,)) for word in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert library.f is original


def test_a_context_patch_is_for_one_thread_or_task(library: ModuleType) -> None:
    original, found = library.f, []
    outside = copy_context()
    patch = ContextPatch(library, "f", adds("here").make)
    everybody = Patch(library, "f", adds("all"))
    with activate([patch]):
        everybody.install()
        assert library.f(1) == (1, "here", "all")
        thread = threading.Thread(target=lambda: found.append(library.f(1)))
        thread.start()
        thread.join()
        found.append(outside.run(library.f, 1))
        with patch.active():
            pass
        assert library.f(1) == (1, "here", "all")
    assert found == [(1, "all")] * 2
    assert library.f(1) == (1, "all")
    everybody.uninstall()
    with pytest.raises(ZeroDivisionError), activate([patch]):
        raise ZeroDivisionError
    assert library.f is original


def test_a_sleeping_patch_takes_part_while_somebody_uses_it(library: ModuleType) -> None:
    sleeper, other = SleepingPatch(library, "f", adds("one")), Patch(library, "f", adds("two"))
    with awake([sleeper]):  # not installed
        assert library.f(0) == (0,)
    sleeper.install()
    other.install()
    assert sleeper.installed
    assert library.f(0) == (0, "two")
    with awake([sleeper]):
        with awake([sleeper]):
            pass
        assert library.f(0) == (0, "one", "two")
        with copy_context().run(pytest.raises, ZeroDivisionError), awake([sleeper]):
            raise ZeroDivisionError
        other.uninstall()
        assert library.f(0) == (0, "one")
    assert library.f(0) == (0,)
    sleeper.uninstall()
