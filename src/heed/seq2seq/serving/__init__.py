"""Serves trained runs over HTTP, with a page to try them on.

A request passes through

- `_sockets.py`: the address; `_server.py`: start and stop; `launching.py`: one process, or several
  behind one socket (`_processes.py`).
- `_connection.py`: a connection, with limits outside bodies; `hosts.py`: the host names that the server answers to.
- `app.py`: the paths, and the status of each failure.
- `_body.py`: reads a body without holding more than is allowed.
- `_messages.py`: requests and answers as pydantic models, from which OpenAPI is made.
- `_batcher.py`: the queue, and the one thread that works on batches.
- `_translations.py`: translates a batch on that thread.
- `_metrics.py`: the metrics; `_page.py`: the page; `options/serving.py` of the next room: the limits.

These files import the packages of the extra `serve`; only `heed serve` imports them.
"""
