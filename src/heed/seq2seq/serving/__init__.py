"""Serving trained runs over HTTP, and a page to try them on.

One request's way, from outside to the model:

- `sockets.py`: where it listens; `server.py`: how it starts and stops.
- `connection.py`: a connection, with limits to what is no body; `hosts.py`: to which names it answers.
- `app.py`: the paths, and which status each failure has.
- `body.py`: reading a body without ever holding more than is allowed.
- `messages.py`: what is asked and answered, as pydantic models; OpenAPI is made of them.
- `batcher.py`: the queue, and the one thread that takes what goes together.
- `translations.py`: what that thread does with a batch.
- `options.py`: the limits; `metrics.py`: what is counted; `page.py`: the page.

The files of this folder import what the extra `serve` brings, so that they are imported by `heed serve` alone.
"""
