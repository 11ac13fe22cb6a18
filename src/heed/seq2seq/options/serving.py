"""The limits of a server, checked when they are made."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from heed._numbers import check_integer, check_real
from heed.errors import UsageError, convert_value_errors


@dataclass(frozen=True)
class ServingOptions:
    """The limits of a server. A request beyond one is refused at once, with its own status code.

    Args:
        max_batch: hypotheses decoded together, 1 or more: as many texts, or fewer with a beam.
        max_queue: waiting texts of all requests together, at least `max_texts`. Beyond: 429.
        max_texts: texts of a request, 1 or more. Beyond: 422.
        max_characters: characters of a text, 1 or more. Beyond: 422.
        max_beam: the widest beam that a request may ask for, 1 or more. Beyond: 422.
        max_body: bytes of a request's body, 1 or more. Beyond: 413, and the rest is not read.
        body_timeout: seconds for a body to arrive, above 0. Beyond: 408.
        timeout: seconds from the end of the body to the answer, above 0. Beyond: 504.
        write_timeout: seconds in which a client must take some of its answer, above 0. Beyond: it is cut off.
        drain: seconds from the signal to stop to the end, above 0. Beyond: unanswered requests get 503.
        max_per_address: connections of one address, 1 or more. Beyond: 503.

    Raises:
        TaskError: if a value is out of its range.

    Example:
        >>> ServingOptions(max_batch=0)
        Traceback (most recent call last):
        ...
        heed.errors.UsageError: `max_batch` must be an integer >= 1. Received: max_batch=0
    """

    max_batch: int = 64
    max_queue: int = 512
    max_texts: int = 64
    max_characters: int = 2_000
    max_beam: int = 8
    max_body: int = 256 * 1024
    body_timeout: float = 10.0
    timeout: float = 30.0
    write_timeout: float = 30.0
    drain: float = 10.0
    max_per_address: int = 256

    def __post_init__(self) -> None:
        with convert_value_errors():
            for field in dataclasses.fields(self):
                value = getattr(self, field.name)
                if field.type == "int":
                    value = check_integer(field.name, value, least=1)
                else:
                    value = check_real(field.name, value, least=0, exclusive=True)
                object.__setattr__(self, field.name, value)
        if self.max_queue < self.max_texts:
            raise UsageError(
                "`max_queue` must be at least `max_texts`, or a full request could never wait. "
                f"Received: max_queue={self.max_queue}, max_texts={self.max_texts}"
            )
