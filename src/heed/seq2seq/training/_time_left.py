"""An estimate of the time that a training still takes."""

from __future__ import annotations

from collections.abc import Callable

_NOISE = 1.25  # an estimate that is higher by less than this does not replace the last one


class TimeLeft:
    """Estimates the time until the last step from the means of steps and of validations.

    The first step of a sitting compiles the model and does not count. Until a validation has been seen, the estimate is
    a least one.

    Example:
        >>> now = iter([0, 30, 31, 32, 33, 38, 39])
        >>> left = TimeLeft(0, 10, 4, lambda: next(now))
        >>> for step in (1, 2, 3):
        ...     left.advance(step)
        >>> str(left)  # 7 steps of a second, and validations
        'at least 0:07 left'
        >>> for step in (4, 5, 6):
        ...     left.advance(step)
        >>> str(left)  # 4 steps, and 2 validations of 4 seconds
        '0:12 left'
    """

    def __init__(
        self, step: int, steps: int, validate_every: int, clock: Callable[[], float]
    ) -> None:
        self._step, self._steps, self._every, self._clock = step, steps, validate_every, clock
        self._first = step + 1
        self._last = clock()
        self._plain: list[float] = [0.0, 0]  # seconds and number of steps alone
        self._long: list[float] = []  # seconds of steps after a validation, it included
        self._shown: tuple[bool, float] | None = None

    def advance(self, step: int) -> None:
        """Note that a step has been taken."""
        now = self._clock()
        seconds, before = now - self._last, step - 1
        self._step, self._last = step, now
        if step <= self._first:
            return
        if before % self._every == 0:
            self._long.append(seconds)
        else:
            self._plain = [self._plain[0] + seconds, self._plain[1] + 1]
        self._estimate()

    def _estimate(self) -> None:
        if not self._plain[1]:  # each step has its validation
            seconds = sum(self._long) / len(self._long) * (self._steps - self._step)
            self._show(True, seconds)
            return
        mean = self._plain[0] / self._plain[1]
        seconds = mean * (self._steps - self._step)
        if self._long:
            later = self._long[1:] or self._long  # the first compiles, too
            validations = -(-self._steps // self._every) - self._step // self._every
            seconds += max(0.0, sum(later) / len(later) - mean) * validations
        self._show(bool(self._long), seconds)

    def _show(self, whole: bool, seconds: float) -> None:
        if self._shown is not None and self._shown[0] == whole:
            shown = self._shown[1]
            seconds = shown if shown < seconds < shown * _NOISE else seconds
        self._shown = whole, seconds

    def __str__(self) -> str:
        if self._shown is None:
            return ""
        whole, seconds = self._shown
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
        return f"{'' if whole else 'at least '}{text} left"
