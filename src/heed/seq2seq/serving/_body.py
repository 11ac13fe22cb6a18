"""Reads the body of a request within limits of size and time."""

from __future__ import annotations

from http import HTTPStatus

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request

# Seconds and bytes of a refused body to read and drop: a client that still sends when the connection closes cannot read
# the answer.
_LINGER, _WORTH_LINGERING = 2.0, 1 << 24


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """Read the body of a request, holding at most so many bytes of it, and waiting at most so many seconds.

    Raises:
        HTTPException: 415 for a compressed body; 413 for a longer one, at once if the header tells its length; 408 for
            a slow one; 400 if the client went away. The connection is closed after it.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        await _drop(request)
        raise _refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must not be compressed")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (length := int(announced[:20])) > most:
        # A client with `Expect: 100-continue` sends nothing unless told to.
        if length <= _WORTH_LINGERING and "expect" not in request.headers:
            await _drop(request)
        raise _too_large(most)
    body, more = bytearray(), True
    try:
        with anyio.fail_after(seconds):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise _refusal(HTTPStatus.BAD_REQUEST, "the client went away")
                part, more = message.get("body", b""), message.get("more_body", False)
                if len(body) + len(part) > most:
                    break
                body.extend(part)
            else:
                return bytes(body)
    except TimeoutError:
        raise _refusal(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the body must arrive within {seconds:g} seconds: {len(body):,} bytes of it did",
        ) from None
    if more:
        await _drop(request)
    raise _too_large(most)


async def _drop(request: Request) -> None:
    """Read and drop the rest of a body, for a while."""
    with anyio.move_on_after(_LINGER):
        while (message := await request.receive())["type"] == "http.request":
            if not message.get("more_body"):
                return


def _too_large(most: int) -> HTTPException:
    return _refusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body must have at most {most:,} bytes"
    )


def _refusal(status: int, detail: str) -> HTTPException:
    return HTTPException(status, detail, {"Connection": "close"})
