"""`stream`: the tokens of `generate` one by one, as they are decoded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import Any, Protocol, runtime_checkable

from keras import ops

from heed.config import takes_options
from heed.decoding import engine
from heed.decoding._generation import Request, make_loop, make_request
from heed.decoding.compiled import program
from heed.decoding.decodable import Decodable
from heed.decoding.options import GenerateOptions, options_of
from heed.ops.backends import as_written

_NAMES = [
    name
    for name in options_of("greedy", "sample")
    if name not in ("max_length", "num_results", "return_scores")
]


@as_written
@takes_options(GenerateOptions, _NAMES)
def stream(
    model: Decodable,
    source: Any = None,
    *,
    max_length: int | None = None,
    prompt: Any = None,
    stop_token_ids: Any = "auto",
    **options: Any,
) -> Generator[Any, None, None]:
    """Decode one target and yield its tokens as they come.

    The tokens are those of `generate` with the same arguments: those after the prompt, with the end token if the target
    has ended. Where the decoder engine runs, it decodes at full speed on another thread and does not wait for the
    reader; elsewhere one step runs for each token. Arguments are checked at once, decoding begins with the first token
    asked for. A reader may stop at any time: `break`, an exception or its method `close()` ends decoding at the
    next token and frees its memory.

    A model may be trained meanwhile. Decoding goes on with the weights of its beginning, except on PyTorch, which
    trains in place: the engine reads large float32 weights in the memory of the model, so the next token may be that of
    the new ones.

    A beam search cannot be streamed, because it may replace any token until it ends.

    A `CausalLM` of KerasHub streams after `heed.accelerate(model)`, if the decoder engine runs it: pieces of text that
    join to `model.generate(source, max_length, stop_token_ids, strip_prompt=True)`; without a preprocessor, token ids.
    The sampler of the model chooses them.

    Args:
        model: As for `generate`, or a `CausalLM` of KerasHub. heed's models have this function as a method:
            `model.stream(source, max_length=...)`.
        source: As for `generate`, one row: (1, S) integers, or the input of the model's `encoder`. None for a
            `LanguageModel`. Of KerasHub one prompt, as its `generate` takes it: text, or {"token_ids": (1, S),
            "padding_mask": (1, S)}.
        max_length: The most tokens of the target, prompt and end included. An integer from 1 to 2**20. Of KerasHub as
            for its `generate`, which has a default.
        prompt: (1, P) integers, or None, as for `generate`.
        stop_token_ids: Of KerasHub, as for its `generate`.
        {options}

    Yields:
        Tokens, int; of KerasHub's models with a preprocessor text, str.

    Raises:
        TypeError: If `model` cannot decode.
        ValueError: If an argument is out of its range, the model refuses the source, there are several rows, or the
            call is inside a compiled function.

    Example:
        >>> import numpy as np
        >>> from heed.models import LanguageModel, LanguageModelConfig, generate
        >>> model = LanguageModel(LanguageModelConfig(30, width=8, num_heads=2, feed_forward_width=16))
        >>> prompt = np.array([[3, 4]])
        >>> tokens = [token for token in model.stream(prompt=prompt, max_length=6)]
        >>> [3, 4, *tokens] == [x for x in np.asarray(generate(model, prompt=prompt, max_length=6))[0] if x]
        True
    """
    if isinstance(made := _generate_function(model), Streaming):
        given = {"prompt": prompt, **options}
        _require_defaults(
            given,
            "the sampler of a KerasHub model chooses its tokens, and heed.accelerate has its formats",
        )
        return made.stream(source, max_length=max_length, stop_token_ids=stop_token_ids)
    _require_defaults({"stop_token_ids": stop_token_ids}, "only models of KerasHub have it")
    if options.get("method") == "beam":
        raise ValueError(
            '`method` must be "greedy" or "sample": a beam search may replace any token until it ends. '
            "Received: method='beam'"
        )
    request = make_request(model, source, prompt, {"max_length": max_length, **options})
    name = next(iter(request.inputs))
    if request.rows != 1:
        raise ValueError(
            f"`{name}` must have one row: a stream has the tokens of one target. "
            f"Received: {name}.shape={tuple(request.inputs[name].shape)}"
        )
    try:
        ops.convert_to_numpy(request.inputs[name])
    except Exception:  # each backend has its own
        raise ValueError(
            f"`stream` must be called outside of compiled functions. Received: {name}={request.inputs[name]!r}"
        ) from None
    return (_decode_in_graph if request.reasons else _decode_by_engine)(model, request)


@runtime_checkable
class Streaming(Protocol):
    """What `make_generate_function` of an accelerated model of KerasHub makes."""

    def stream(self, inputs: Any, **options: Any) -> Generator[Any, None, None]:
        """Yield what `generate` of the model adds to a prompt."""
        ...


def _generate_function(model: Any) -> Any:
    make = getattr(model, "make_generate_function", None)
    return None if make is None else make()


def _require_defaults(options: dict[str, Any], reason: str) -> None:
    parameters = inspect.signature(stream).parameters
    for name, value in options.items():
        default = parameters[name].default
        if type(value) is not type(default) or value != default:
            raise ValueError(f"`{name}` must be {default!r}: {reason}. Received: {name}={value!r}")


def _decode_by_engine(model: Decodable, request: Request) -> Generator[int, None, None]:
    """Run the engine on another thread and yield the tokens that it writes."""

    def decode(write: Callable[[int], bool]) -> None:
        engine.decode(model, request.inputs, request.options, write)

    return engine.TokenStream(decode).read()


def _decode_in_graph(model: Decodable, request: Request) -> Generator[int, None, None]:
    inputs, options, config = request.inputs, request.options, model.config
    given = 0
    if "prompt" in inputs:
        given = int((ops.convert_to_numpy(inputs["prompt"]) != config.pad_id).sum())
    memory, variables = program(model, options, _start)(inputs)
    step = program(model, options, _step)
    for place in range(int(variables[0].index), options["max_length"]):
        variables = step({**inputs, "memory": memory, "variables": variables})
        token = int(ops.convert_to_numpy(variables[1])[0])
        if place >= given:
            yield token
        if token == config.end_id:
            return


def _start(model: Decodable, inputs: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the memory of the source, and the variables of the loop before its first step."""
    memory = model.encode_source(inputs.get("source"))
    return memory, make_loop(model, memory, inputs, options).start()


def _step(model: Decodable, inputs: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return the variables of the loop after one more step."""
    return make_loop(model, inputs["memory"], inputs, options).step(*inputs["variables"])
