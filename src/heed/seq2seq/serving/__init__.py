"""Serves trained runs over HTTP, with a page to try them on.

A request passes through

- `sockets.py`: the address; `server.py`: start and stop; `processes.py`: several processes behind one socket.
- `connection.py`: a connection, with limits outside bodies; `hosts.py`: the host names that the server answers to.
- `app.py`: the paths, and the status of each failure.
- `body.py`: reads a body without holding more than is allowed.
- `messages.py`: requests and answers as pydantic models, from which OpenAPI is made.
- `batcher.py`: the queue, and the one thread that works on batches.
- `translations.py`: translates a batch on that thread.
- `options.py`: the limits; `metrics.py`: the metrics; `page.py`: the page.

These files import the packages of the extra `serve`; only `heed serve` imports them.
"""
