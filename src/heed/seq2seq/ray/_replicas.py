"""The server of `heed serve` as a deployment of Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heed.errors import TaskError
from heed.install import how_to_install
from heed.ray_connection import check_installed, count_assigned_threads
from heed.seq2seq.options.decoding import DecodingOptions
from heed.seq2seq.runs.run_folder import RunFolder


def deployment(
    run: Path | str | Mapping[str, Path | str],
    *,
    name: str = "heed",
    limits: Mapping[str, float] | None = None,
    decoding: DecodingOptions | None = None,
    allowed_hosts: Sequence[str] = (),
    threads: int | None = None,
    **settings: Any,
) -> Any:
    """Return an application of Ray Serve with the paths of `heed serve`; each replica has its own model.

    Args:
        run: the run folder, which every node can read; or several by name, the first of which is the default.
        name: the name of the deployment.
        limits: limits of each replica, the fields of `ServingOptions`.
        decoding: decoding options, for all that requests do not set.
        allowed_hosts: host names that clients use, besides localhost and addresses; "*" for all.
        threads: threads of each replica; None: the `num_cpus` of its `ray_actor_options`.
        **settings: options of `serve.deployment`: `num_replicas`, `autoscaling_config`, `ray_actor_options` ...

    Returns:
        What `ray.serve.run` takes.

    Raises:
        RayError: if Ray is not installed.
        TaskError: if another package is not installed, or a run or a limit cannot be used.

    Example:
        >>> serve.run(deployment("/shared/german", num_replicas=2))  # doctest: +SKIP
    """
    check_installed()
    try:
        from ray import serve

        from heed.seq2seq.options.serving import ServingOptions
        from heed.seq2seq.serving.hosts import Hosts
    except ImportError as error:
        text = f"a deployment needs {error.name}: {how_to_install('ray')}"
        raise TaskError(text) from None
    runs = run if isinstance(run, Mapping) else {Path(run).resolve().name: run}
    paths = {one: Path(path).resolve() for one, path in runs.items()}
    for path in paths.values():
        RunFolder.open(path)
    Hosts(allowed_hosts)
    served = (
        paths,
        ServingOptions(**(limits or {})),  # type: ignore[arg-type]
        decoding or DecodingOptions(),
        tuple(allowed_hosts),
        threads,
    )
    return serve.deployment(_Replica, name=name, **settings).bind(*served)


class _Replica:
    """A replica: the application of `heed serve`, on requests that Ray Serve passes on."""

    def __init__(
        self,
        runs: Mapping[str, Path],
        limits: Any,
        decoding: DecodingOptions,
        allowed_hosts: Sequence[str],
        threads: int | None,
    ) -> None:
        from heed.seq2seq.tensorflow_start import start_tensorflow

        start_tensorflow(count_assigned_threads() if threads is None else threads)
        from heed.seq2seq.serving.app import Service, make_app
        from heed.seq2seq.serving.hosts import Hosts
        from heed.seq2seq.translating.translator import Translator

        translators = {name: Translator(RunFolder.open(path)) for name, path in runs.items()}
        self._service = Service(translators, limits, decoding)
        self._service.warm_up()
        self._app = make_app(self._service, Hosts(allowed_hosts, addresses=True))

    async def __call__(self, request: Any) -> Any:
        """Answer a request of Starlette."""
        from starlette.responses import Response

        status, headers, body = 500, [], bytearray()

        async def send(message: Any) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], message.get("headers", [])
            else:
                body.extend(message.get("body", b""))

        await self._app(request.scope, request.receive, send)
        answer = Response(bytes(body), status)
        answer.raw_headers = list(headers)
        return answer

    def check_health(self) -> None:
        """Raise an error if the replica cannot serve; Ray Serve calls it, and replaces one that raises."""
        if not self._service.batcher.is_alive():
            raise RuntimeError("the thread that translates has ended")
