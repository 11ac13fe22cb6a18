"""The limits of a server, checked when they are made."""

from __future__ import annotations

import dataclasses
from typing import Any

from heed.config import COUNT, POSITIVE, describes_options, option
from heed.seq2seq.options.user_config import UserConfig


def _limit(default: Any, help: str, beyond: str) -> Any:
    return option(
        default,
        COUNT if isinstance(default, int) else POSITIVE,
        help,
        details=f"Beyond: {beyond}." if beyond else "",
    )


@describes_options
@dataclasses.dataclass(frozen=True)
class ServingOptions(UserConfig):
    """The limits of a server. A request beyond one is refused at once, with its own status code.

    Args:
        {options}

    Raises:
        TaskError: if a value is out of its range.

    Example:
        >>> ServingOptions(max_batch=0)
        Traceback (most recent call last):
        ...
        heed.errors.UsageError: `max_batch` must be an integer >= 1. Received: max_batch=0
    """

    max_batch: int = _limit(64, "hypotheses decoded together", "")  # a beam makes texts fewer
    max_queue: int = _limit(512, "texts that may wait", "429")
    max_texts: int = _limit(64, "texts of a request", "422")
    max_characters: int = _limit(2_000, "characters of a text", "422")
    max_beam: int = _limit(8, "widest beam of a request", "422")
    max_body: int = _limit(256 * 1024, "bytes of a request", "413, and the rest is not read")
    body_timeout: float = _limit(10.0, "seconds for a request to arrive", "408")
    timeout: float = _limit(30.0, "seconds from then to its answer", "504")
    write_timeout: float = _limit(
        30.0, "seconds in which a client must take some of its answer", "it is cut off"
    )
    drain: float = _limit(
        10.0,
        "seconds to finish requests in progress when stopping",
        "unanswered requests get 503",
    )
    max_per_address: int = _limit(256, "connections of one address", "503")

    def _check_together(self) -> None:
        self._require(
            self.max_queue >= self.max_texts,
            "be at least `max_texts`, or a full request could never wait",
            "max_queue",
            "max_texts",
        )
