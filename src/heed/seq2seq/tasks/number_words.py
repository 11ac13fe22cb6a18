"""Numbers from 0 to 999,999 and their words: held-out numbers, training samples, spelling and parsing.

Everything is arithmetic on the number, the seed and the step, without generator state or a random library. A batch is a
function of (seed, step), so a resumed run needs only its step, and the held-out numbers are the same on every machine
and NumPy version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heed.errors import TaskError, UsageError
from heed.install import how_to_install
from heed.seq2seq.options.user_values import split_names
from heed.seq2seq.text.hashing import mix, permutation, stream
from heed.suggestions import nearest

LARGEST = 999_999
LANGUAGES = ("en", "de", "fr", "es")

_ALWAYS_TRAINED = 100  # 0 to 99 carry the irregular words; no rule could supply them
_ONE_IN = 20  # one number in twenty is held out
# Numbers of digits of 16 training samples in a row.
_DIGITS_IN_TURN = (6, 4, 5, 2, 6, 3, 5, 4, 6, 1, 5, 2, 6, 4, 5, 3)
ROUND = len(_DIGITS_IN_TURN)

_SMALL = 10_000
_EVALUATION_SMALL, _EVALUATION_LARGE = 400, 1_600
_VALIDATION_SMALL, _VALIDATION_LARGE = 80, 432

# Each use has its own sequence of scrambled integers.
_HELD_OUT_KEY, _ORDER_KEY, _SAMPLE_KEY = 0x48454544, 0x6F726465, 0x73616D70
_ZEROS_KEY = 0x7A65726F


def is_held_out(numbers: ArrayLike) -> NDArray[np.bool_]:
    """Say which numbers are kept out of training, in all languages alike.

    A hash of the number decides: 5 % of the numbers of 100 or more; 0 to 99 are never held out.

    Example:
        >>> is_held_out([7, 42, 99]).tolist()
        [False, False, False]
        >>> round(float(is_held_out(range(1_000_000)).mean()), 3)
        0.05
    """
    n = np.asarray(numbers, dtype=np.int64)
    chosen = mix(n ^ _HELD_OUT_KEY) % np.uint64(_ONE_IN) == 0
    return chosen & (n >= _ALWAYS_TRAINED)


@lru_cache(maxsize=1)
def _held_out_order() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all held-out numbers in a fixed scrambled order: those below 10,000, and the others."""
    everything = np.arange(LARGEST + 1)
    chosen = everything[is_held_out(everything)]
    chosen = chosen[permutation(len(chosen), _ORDER_KEY)]
    return chosen[chosen < _SMALL], chosen[chosen >= _SMALL]


def evaluation_numbers() -> NDArray[np.int64]:
    """Return the 2,000 held-out numbers to evaluate on, in scrambled order; 1,600 of them are 10,000 or more."""
    small, large = _held_out_order()
    both = np.concatenate([small[:_EVALUATION_SMALL], large[:_EVALUATION_LARGE]])
    return both[permutation(len(both), _ORDER_KEY, 1)]


def validation_numbers() -> NDArray[np.int64]:
    """Return 512 held-out numbers to validate on during training; none is in :func:`evaluation_numbers`."""
    small, large = _held_out_order()
    return np.concatenate(
        [
            small[_EVALUATION_SMALL : _EVALUATION_SMALL + _VALIDATION_SMALL],
            large[_EVALUATION_LARGE : _EVALUATION_LARGE + _VALIDATION_LARGE],
        ]
    )


def training_numbers(seed: int, step: int, count: int) -> NDArray[np.int64]:
    """Return the numbers of a training batch of this size, a function of (seed, step) alone.

    The samples of all steps are one sequence in which the numbers of digits alternate, 16 to a round: of 16 samples one
    has a single digit, two have two, two have three, three have four, four have five and four have six. Numbers of one
    length are drawn evenly, but one in four is then given zeros: each of its digits but the first, with a chance of one
    half. Drawn evenly as a whole, one number in a thousand would be below 1,000 and one in a thousand would end in 100,
    and users ask for such numbers first. Held-out numbers never come.

    Example:
        >>> batch = training_numbers(seed=1, step=5, count=16)
        >>> bool((batch == training_numbers(seed=1, step=5, count=16)).all())
        True
        >>> [len(str(n)) for n in batch]
        [6, 4, 5, 2, 6, 3, 5, 4, 6, 1, 5, 2, 6, 4, 5, 3]
    """
    digits = np.array(_DIGITS_IN_TURN)[np.arange(step * count, (step + 1) * count) % ROUND]
    low, high = np.where(digits == 1, 0, 10 ** (digits - 1)), 10**digits
    drawn = np.zeros(count, np.int64)
    missing, attempt = np.ones(count, np.bool_), 0
    while missing.any():
        scrambled = stream(count, _SAMPLE_KEY, seed, step, attempt)
        candidates = low + (scrambled % (high - low).astype(np.uint64)).astype(np.int64)
        chance = stream(count, _ZEROS_KEY, seed, step, attempt)
        drawn = np.where(missing, _add_zeros(candidates, low, chance), drawn)
        missing, attempt = is_held_out(drawn), attempt + 1
    return drawn


def _add_zeros(
    drawn: NDArray[np.int64], low: NDArray[np.int64], chance: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Set about half of the digits below the first to zero, in one number of four."""
    some = chance % np.uint64(4) == 0
    for place in range(len(str(LARGEST)) - 1):
        unit = 10**place
        zeroed = some & (unit < low) & ((chance >> np.uint64(2 + place)) % np.uint64(2) == 0)
        drawn = np.where(zeroed, drawn - drawn // unit % 10 * unit, drawn)
    return drawn


def spell(number: int, language: str = "en") -> str:
    """Return the words of a number from 0 to 999,999, as the num2words library writes them.

    Raises:
        TaskError: for a number out of range, an unknown language, or without num2words.

    Example:
        >>> spell(1234)
        'one thousand, two hundred and thirty-four'
        >>> spell(1234, "de")
        'eintausendzweihundertvierunddreißig'
    """
    check_languages((language,))
    if not 0 <= number <= LARGEST:
        raise TaskError(f"`number` must be from 0 to {LARGEST:,}. Received: {number}")
    try:
        from num2words import num2words
    except ImportError:
        raise TaskError(f"numbers need the num2words library: {how_to_install('demo')}") from None
    return _write(num2words, int(number), language)


@lru_cache(2**14)  # a tokenizer's sample is the same for each task, and validation for each run
def _write(num2words: Callable[..., object], number: int, language: str) -> str:
    return str(num2words(number, lang=language))


def check_languages(languages: str | Sequence[str]) -> tuple[str, ...]:
    """Return the languages of names, or of one text with commas between them; each is known and comes once.

    Raises:
        TaskError: if not.

    Example:
        >>> check_languages(("en", "fr")), check_languages("en, fr")
        (('en', 'fr'), ('en', 'fr'))
    """
    if isinstance(languages, str):
        languages = split_names(languages)
    unknown = [language for language in languages if language not in LANGUAGES]
    if unknown or not languages or len(set(languages)) != len(languages):
        raise UsageError(
            f"languages must be some of {','.join(LANGUAGES)}, each once. "
            f"Received: {','.join(languages) or 'none'}{nearest(str(unknown[0]), LANGUAGES) if unknown else ''}"
        )
    return tuple(languages)


_PLAIN = re.compile(r"[0-9]+(?: +[0-9]+)*")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")


def parse_number(text: str) -> int:
    """Parse a number from 0 to 999,999: "1234", "1 2 3 4", "1 234" and "1,234" are the same.

    Raises:
        TaskError: for anything else, with what was expected and received.

    Example:
        >>> parse_number("1 2 3 4"), parse_number(" 1,234 ")
        (1234, 1234)
    """
    stripped = text.strip().replace("\t", " ")
    excerpt = stripped if len(stripped) <= 40 else stripped[:37] + "..."
    if not stripped:
        raise TaskError(f"a number from 0 to {LARGEST:,} must not be empty")
    if not (_PLAIN.fullmatch(stripped) or _GROUPED.fullmatch(stripped)):
        raise TaskError(
            f"a number must be digits, such as 1234, 1 2 3 4 or 1,234. Received: {excerpt!r}"
        )
    digits = stripped.replace(" ", "").replace(",", "").lstrip("0") or "0"
    if len(digits) > len(str(LARGEST)):
        raise TaskError(f"a number must be from 0 to {LARGEST:,}. Received: {excerpt!r}")
    return int(digits)
