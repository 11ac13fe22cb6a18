"""The decoding itself: one op, after the encoder in the graph where the engine does not run that too."""

from __future__ import annotations

from typing import Any

from keras import ops

from heed.decoding.engine.reasons import encoder_reasons
from heed.decoding.engine.stacks import describe_decoder, describe_positions, describe_stack
from heed.ops.backends import current
from heed.ops.backends.decoder import Batch, Search

# Options of `generate` that a search of the engine has too.
_SEARCH = ("method", "temperature", "top_k", "top_p", "beam_size", "length_penalty")


def decode(model: Any, inputs: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """Tokens (B, N, L) and scores (B, N) or None, of the inputs and options of `generate`."""
    config, length = model.config, options["max_length"]
    own = {name: options[name] for name in _SEARCH if options.get(name) is not None}
    results, return_scores = options["num_results"], options["return_scores"]
    draws = results if options["method"] == "sample" else 1
    if draws > 1:  # each draw has its own row
        repeated = {name: x for name, x in inputs.items() if name != "uniform"}
        repeated = {name: ops.repeat(x, draws, axis=0) for name, x in repeated.items()}
        inputs = {**inputs, **repeated}
    if options["method"] == "sample" and options["top_k"] == 1 and not return_scores:
        own = {"method": "greedy"}
    search = Search(
        length,
        config.pad_id,
        config.start_id,
        config.end_id,
        results=results // draws,
        return_scores=return_scores,
        **own,
    )
    encoder, fields = None, {}
    if "source" not in inputs:
        source = ops.zeros((ops.shape(inputs["prompt"])[0], 0), dtype="int32")
        mask = source == 0
    elif not encoder_reasons(model):
        source, mask = inputs["source"], model.source_mask(inputs["source"])
        room = ops.shape(source)[1]
        encoder = describe_stack(model.encoder, options["weights"])
        fields = {"source_positions": describe_positions(model.encoder, room, room, 2 * room)}
    else:
        memory = model.encode_source(inputs["source"])
        encoded = ops.cast(memory["encoded"], "float32")
        source = ops.zeros(ops.shape(encoded)[:2], dtype="int32")  # of which nothing is read
        mask = memory.get("mask", source == 0)
        fields = {"encoded": encoded}
    batch = Batch(
        source,
        mask,
        positions=describe_positions(model.decoder, length, length - 1, length),
        prompt=inputs.get("prompt"),
        uniform=inputs.get("uniform"),
        stream=inputs.get("stream"),
        **fields,
    )
    decoder = describe_decoder(model.decoder, options["weights"])
    tokens, scores = current().DECODER.decode(decoder, encoder, batch, search)
    if draws > 1:
        tokens = ops.reshape(tokens, (-1, results, length))
        scores = None if scores is None else ops.reshape(scores, (-1, results))
    return tokens, scores
