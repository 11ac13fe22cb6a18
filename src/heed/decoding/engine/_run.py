"""The decoding itself: at once by the core, or as one op of a graph; after the encoder where the engine has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from heed.decoding.compiled import keep, program
from heed.decoding.engine._reasons import encoder_reasons
from heed.decoding.engine.describe import describe_decoder, describe_positions, describe_stack
from heed.decoding.engine.packed import PackedModel
from heed.ops.backends import current
from heed.ops.core.decoder import SEARCH_NUMBERS
from heed.ops.core.description import Batch, Positions, Search, map_tensors


def decode(
    model: Any,
    inputs: dict[str, Any],
    options: dict[str, Any],
    on_token: Callable[[int], bool] | None = None,
) -> tuple[Any, Any]:
    """Return tokens (B, N, L) and scores (B, N) or None, by the engine, of the inputs and options of a `Request`.

    Where nothing is traced, `on_token` is called with each token of the only target as soon as it is decoded, from any
    thread; False ends the target there.
    """
    results = options["num_results"]
    draws = results if options["method"] == "sample" else 1
    if draws > 1:  # each draw has its own row
        repeated = {name: x for name, x in inputs.items() if name != "uniform"}
        repeated = {name: ops.repeat(x, draws, axis=0) for name, x in repeated.items()}
        inputs = {**inputs, **repeated}
    search = _make_search(model.config, options, results // draws)
    weights = options["weights"]
    if current().is_tracing():
        tokens, scores = _decode_in_graph(model, inputs, weights, search)
    else:
        tokens, scores = _decode_at_once(model, inputs, weights, search, on_token)
    if draws > 1:
        tokens = ops.reshape(tokens, (-1, results, search.length))
        scores = None if scores is None else ops.reshape(scores, (-1, results))
    return tokens, scores


def _make_search(config: Any, options: dict[str, Any], results: int) -> Search:
    method = options["method"]
    if method == "sample" and options["top_k"] == 1 and not options["return_scores"]:
        method = "greedy"
    # Those of the options that the engine reads by the same name.
    own = {
        name: x
        for name, x in options.items()
        if name in SEARCH_NUMBERS and isinstance(x, (int, float))
    }
    return Search(
        options["max_length"],
        config.pad_id,
        config.start_id,
        config.end_id,
        results=results,
        method=method,
        beam_size=options.get("beam_size", 1),
        return_scores=options["return_scores"],
        cache=options["cache"],
        numbers=own,
    )


def _decode_at_once(
    model: Any,
    inputs: dict[str, Any],
    weights: str,
    search: Search,
    on_token: Callable[[int], bool] | None,
) -> tuple[Any, Any]:
    """Decode by a call of the core with the numbers of the tensors."""
    backend, encodes = current(), _encodes(model, inputs)
    packed = keep(model, ("packed", weights, encodes), lambda: _pack(model, weights, encodes))
    version = packed.version()
    if "source" in inputs and not encodes:
        encoded = program(model, {}, _encode, quick=True)({"source": inputs["source"]})
    else:
        encoded = None
    batch = _make_batch(model, inputs, search.length, encoded, version.positions)
    tokens, scores = version.decoder.decode(
        map_tensors(batch, lambda x: x if isinstance(x, np.ndarray) else backend.to_array(x)),
        search,
        backend.native_threads(),
        None if on_token is None else lambda _, token: on_token(token),
    )
    convert = backend.convert_to_tensor
    return convert(tokens), None if scores is None else convert(scores)


def _pack(model: Any, weights: str, encodes: bool) -> PackedModel:
    encoder = describe_stack(model.encoder, weights) if encodes else None
    stacks = (model.decoder, model.encoder) if encodes else (model.decoder,)
    tables = tuple(x for stack in stacks for x in stack.embedding.variables)
    return PackedModel(describe_decoder(model.decoder, weights), encoder, tables)


def _decode_in_graph(
    model: Any, inputs: dict[str, Any], weights: str, search: Search
) -> tuple[Any, Any]:
    """Decode by the op of the graph that is traced."""
    encodes = _encodes(model, inputs)
    encoded = _encode(model, inputs, {}) if "source" in inputs and not encodes else None
    batch = _make_batch(model, inputs, search.length, encoded, describe_positions)
    encoder = describe_stack(model.encoder, weights) if encodes else None
    return current().DECODER_OP.decode(
        describe_decoder(model.decoder, weights), encoder, batch, search
    )


def _encodes(model: Any, inputs: dict[str, Any]) -> bool:
    return "source" in inputs and not encoder_reasons(model)


def _encode(model: Any, inputs: dict[str, Any], _: dict[str, Any]) -> dict[str, Any]:
    """Return what the model's own encoder makes of the sources."""
    memory = model.encode_source(inputs["source"])
    encoded = ops.cast(memory["encoded"], "float32")
    source = ops.zeros(ops.shape(encoded)[:2], dtype="int32")  # of which nothing is read
    mask = memory.get("mask", source == 0)
    return {"source": source, "source_mask": mask, "encoded": encoded}


def _make_batch(
    model: Any,
    inputs: dict[str, Any],
    length: int,
    encoded: dict[str, Any] | None,
    find_positions: Callable[..., Positions],
) -> Batch:
    """Return the batch of a call for targets of a length.

    What `_encode` returns is None where the engine encodes the sources or there are none; `find_positions` does as
    `describe_positions`.
    """
    fields: dict[str, Any] = {}
    if encoded is not None:
        fields = encoded
    elif "source" in inputs:
        source = ops.convert_to_tensor(inputs["source"])
        room = ops.shape(source)[1]
        fields = {
            "source": source,
            "source_mask": model.source_mask(source),
            "source_positions": find_positions(model.encoder, room, room, 2 * room),
        }
    else:
        nothing = ops.zeros((ops.shape(inputs["prompt"])[0], 0), dtype="int32")
        fields = {"source": nothing, "source_mask": nothing == 0}
    return Batch(
        **fields,
        positions=find_positions(model.decoder, length, length - 1, length),
        prompt=inputs.get("prompt"),
        uniform=inputs.get("uniform"),
    )
