"""`generate`: from sources to the targets that a model finds for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
from keras import ops

from heed.config import takes_options
from heed.decoding import engine
from heed.decoding._beam import beam_search
from heed.decoding._incremental_decoder import IncrementalDecoder, column
from heed.decoding._sampling import RowLoop, draw, greedy
from heed.decoding.compiled import program
from heed.decoding.decodable import Decodable, missing_names
from heed.decoding.options import METHODS, GenerateOptions, options_of, sampling_of
from heed.ops.backends import as_written
from heed.ops.checks import check_tokens
from heed.ops.dispatch import Dispatch
from heed.weights import CACHES_OF_BEAMS


@as_written
@takes_options(GenerateOptions, options_of(*METHODS))
def generate(model: Decodable, source: Any = None, *, prompt: Any = None, **options: Any) -> Any:
    """Decode a target for each source, or continues each prompt.

    greedy: `y_t = argmax p(y | y_<t, source)`.
    sample: `y_t ~ p(y | y_<t, source)`, sharpened by `temperature` and cut to the likeliest tokens.
    beam: the `y` with the highest `log p(y | source) / ((5 + |y|) / 6)**length_penalty + coverage_penalty * sum_i
    log(min(sum_j p_ij, 1))` that a beam search finds; `p_ij` is the attention to position i of the source, padding
    aside, in the step that writes token j.

    Where the decoder engine supports the model and the options, the loop is one native call; `explain_generate` tells.
    Its tokens are those of the graph, except where two are equally likely up to rounding.

    Prompts are read many tokens at a time: by the engine in whole, in the graph up to the length of the shortest.

    Called with arrays, the loop runs as one compiled graph, which is kept for the next call with the same options while
    the model's variables, their dtypes and the choice of `heed.set_implementation` stay. For the engine the second such
    call makes it: the first is quicker without. A model keeps its 8 latest graphs. `generate` also works inside a
    `tf.function`. Padding and the start token are never decoded.

    Args:
        model: A `Transformer`, a `LanguageModel`, or any other `Decodable` model.
        source: The model's input, as its `check_source` takes it: of a `Transformer` (B, S) integers, padded with the
            config's `pad_id`, or the input of its `encoder`, such as images; of a `LanguageModel` None.
        prompt: (B, P) integers, P <= `max_length`: the first tokens of each target after the start token. A row's
            prompt ends before its first `pad_id` and may be empty. In a beam search neither its probability nor its
            length counts. None: no prompts. A model without a source needs them: (B, 0) begins from the start.
        {options}

    Returns:
        (B, max_length) int32, or with `num_results` (B, N, max_length), prompt included, start token not. Rows end with
        `end_id`, unless they were cut, and hold `pad_id` after that. Where a beam search finds fewer than N sequences,
        rows of `pad_id` follow.
        With `return_scores=True` the pair of these and float32 scores, (B,) or (B, N): `log p(y | source)` of the
        tokens after the prompt, for "beam" as it ranks them, divided by the penalty; for "sample" with the model's
        probabilities, not sharpened or cut. -inf where there is no sequence.

    Raises:
        TypeError: If `model` cannot decode.
        ValueError: If an argument is out of its range, the model refuses the source, or there is a coverage penalty and
            no attention to a source. Tokens outside the vocabulary that only a running graph knows raise
            tf.errors.InvalidArgumentError; XLA drops that check.

    Source:
        Wu et al. 2016 (length and coverage penalty); Fan et al. 2018 (top k); Holtzman et al. 2020 and Nguyen et
        al. 2024 (cuts of the less likely tokens).

    Example:
        >>> import numpy as np
        >>> from heed.models import Transformer, TransformerConfig, generate
        >>> config = TransformerConfig(20, 30, width=8, num_heads=2, feed_forward_width=16)
        >>> model = Transformer(config)
        >>> tokens = generate(model, np.array([[5, 3, 4, 0]]), max_length=6, method="beam")
        >>> tuple(tokens.shape)
        (1, 6)
        >>> tokens = generate(model, np.array([[5, 3, 4, 0]]), max_length=6, prompt=[[7, 9]])
        >>> np.asarray(tokens)[0, :2].tolist()
        [7, 9]
        >>> source, three = np.array([[5, 3, 4, 0]]), {"num_results": 3, "return_scores": True}
        >>> tokens, scores = generate(model, source, max_length=6, method="beam", **three)
        >>> tuple(tokens.shape), tuple(scores.shape)
        ((1, 3, 6), (1, 3))
    """
    results = options.get("num_results")
    request = make_request(model, source, prompt, options)
    options = request.options
    if request.rows == 0:
        tokens = ops.zeros((0, options["num_results"], options["max_length"]), dtype="int32")
        scores = ops.zeros((0, options["num_results"]), dtype="float32")
    else:
        if request.reasons:
            tokens, scores = program(model, options, _decode)(request.inputs)
        else:
            tokens, scores = engine.decode(model, request.inputs, options)
    scored = options["return_scores"]
    if results is None:
        tokens, scores = ops.squeeze(tokens, 1), ops.squeeze(scores, 1) if scored else None
    return (tokens, scores) if scored else tokens


class Request(NamedTuple):
    """A checked call of `generate` or `stream`."""

    options: dict[str, Any]  # The options that the method uses
    # "source", "prompt" (B, max_length) and "uniform" as tensors, those that there are
    inputs: dict[str, Any]
    rows: int | None  # B, or None while a graph is traced that does not know it
    reasons: list[str]  # Why the engine does not decode; empty if it does


def make_request(model: Decodable, source: Any, prompt: Any, given: Mapping[str, Any]) -> Request:
    """Check the arguments of `generate`, build the model and draw the random numbers."""
    options = _check(model, given)
    config = model.config
    if config.longest_target is not None and options.max_length > config.longest_target:
        raise ValueError(
            "`max_length` must be at most the config's `max_length` for learned positions. "
            f"Received: max_length={options.max_length}, config.max_length={config.longest_target}"
        )
    source = model.check_source(source)
    if source is None and prompt is None:
        raise ValueError("`prompt` must be given where there is no `source`. Received: prompt=None")
    inputs = {} if source is None else {"source": source}
    if prompt is not None:
        inputs["prompt"] = _prompt(prompt, source, config, options.max_length)
    first = next(iter(inputs.values()))
    if not model.built:
        model.build()
    results = options.num_results or 1
    if options.method == "greedy" and options.return_scores:
        # One beam finds the same, and knows its score.
        options = dataclasses.replace(
            options, method="beam", beam_size=1, length_penalty=0.0, coverage_penalty=0.0
        )
    reasons = engine.unsupported_reasons(model, options.to_dict())
    for name in ("weights", "cache"):
        if reasons and getattr(options, name) != "float32":
            raise ValueError(
                f'`{name}` must be "float32" where the engine does not decode: {"; ".join(reasons)}. '
                f"Received: {name}={getattr(options, name)!r}"
            )
    if options.method == "beam" and options.cache not in CACHES_OF_BEAMS:
        allowed = " or ".join(map(repr, CACHES_OF_BEAMS))
        raise ValueError(
            f"`cache` must be {allowed} for a beam search, and for scores of a greedy one. "
            f"Received: cache={options.cache!r}"
        )
    if options.method == "sample":
        # The only randomness, drawn before the loop: a number for each row and step.
        shape = (ops.shape(first)[0] * results, options.max_length)
        inputs["uniform"] = keras.random.uniform(shape, dtype="float32", seed=options.seed)
    used = {**options.of_loop(), "num_results": results}
    return Request(used, inputs, first.shape[0], reasons)


def _check(model: Decodable, given: Mapping[str, Any]) -> GenerateOptions:
    if missing := missing_names(model):
        raise TypeError(
            "`model` must be a heed.models.Transformer, LanguageModel or another model that has the methods of "
            "heed.models.Decodable; or, to stream, a language model of KerasHub after heed.accelerate(model). "
            f"Received: model={model!r}, without {', '.join(missing)}"
        )
    options = GenerateOptions(**given)
    if options.top_k:  # more than the vocabulary cut nothing
        fewer = min(options.top_k, model.config.target_vocabulary_size)
        options = dataclasses.replace(options, top_k=fewer)
    if (
        options.coverage_penalty
        and options.method == "beam"
        and not getattr(model, "aligns", False)
    ):
        raise ValueError(
            "`coverage_penalty` must be 0 for a model without attention to a source. "
            f"Received: coverage_penalty={options.coverage_penalty}"
        )
    return options


def _prompt(prompt: Any, source: Any, config: Any, length: int) -> Any:
    """Return (B, length) int32: the first tokens of each target, then padding."""
    prompt = check_tokens("prompt", prompt, config.target_vocabulary_size, "(B, P)")
    shape = tuple(prompt.shape)
    rows = None if source is None else source.shape[0]
    if None not in (shape[0], rows) and shape[0] != rows:
        raise ValueError(
            "`prompt` must have as many rows as there are sources. "
            f"Received: prompt.shape={shape}, source.shape={tuple(source.shape)}"
        )
    if (shape[1] or 0) > length:
        raise ValueError(
            "`prompt` must not be longer than `max_length`. "
            f"Received: prompt.shape={shape}, max_length={length}"
        )
    prompt, pad = ops.cast(prompt, "int32"), config.pad_id
    nothing = ops.full((ops.shape(prompt)[0], length), pad, dtype="int32")
    whole = ops.concatenate([prompt, nothing], axis=1)[:, :length]
    whole = ops.reshape(whole, (-1, length))  # a length that is known, whatever P is
    going = ops.cumprod(ops.cast(whole != pad, "int32"), axis=1)
    return ops.where(going == 1, whole, pad)


@takes_options(GenerateOptions, ("method", "beam_size", "coverage_penalty", "use_cache"))
def explain_generate(model: Decodable, **options: Any) -> Dispatch:
    """Tell whether `generate` decodes by the engine, one native call for the whole loop, or in the graph, and why.

    Args:
        model: As for `generate`.
        {options}

    Returns: an object with `.implementation` ("engine" or "graph") and `.reasons`; print it.

    Raises:
        TypeError: If `model` cannot decode.
        ValueError: If an option is out of its range.

    Example:
        >>> from heed.models import Transformer, TransformerConfig, explain_generate
        >>> model = Transformer(TransformerConfig(20, 30, width=8, num_heads=2, activation="mish"))
        >>> explain_generate(model, use_cache=False).implementation
        'graph'
    """
    checked = _check(model, {"max_length": 1, **options})
    if not model.built:
        model.build()
    reasons = engine.unsupported_reasons(model, checked.to_dict())
    if reasons:
        return Dispatch("graph", tuple(reasons))
    taken = "the decoder engine takes this model and these options"
    encoder = (f"the encoder runs in the graph: {x}" for x in engine.encoder_reasons(model))
    return Dispatch("engine", (taken, *encoder))


def _decode(model: Decodable, inputs: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """Decode in the current graph: tokens (B, N, L) and scores (B, N)."""
    method, results, prompt = options["method"], options["num_results"], inputs.get("prompt")
    memory = model.encode_source(inputs.get("source"))
    if method != "beam":
        tokens, scores = make_loop(model, memory, inputs, options).run()
        shape = (-1, results, options["max_length"])
        return ops.reshape(tokens, shape), ops.reshape(scores, shape[:2])
    coverage = options["coverage_penalty"] > 0
    decoder = _make_decoder(model, memory, inputs, options, options["beam_size"], coverage)
    penalties = {name: options[name] for name in ("length_penalty", "coverage_penalty")}
    return beam_search(decoder, options["beam_size"], prompt=prompt, results=results, **penalties)


def make_loop(
    model: Decodable, memory: Any, inputs: dict[str, Any], options: dict[str, Any]
) -> RowLoop:
    """Return the loop of greedy decoding or sampling in the current graph, of the inputs and options of a `Request`."""
    decoder = _make_decoder(model, memory, inputs, options, options["num_results"])
    cuts = sampling_of(options)

    def sample(logits: Any, index: Any) -> Any:
        return draw(logits, column(inputs["uniform"], index), **cuts)

    choose = greedy if options["method"] == "greedy" else sample
    return RowLoop(decoder, choose, inputs.get("prompt"), options["return_scores"])


def _make_decoder(
    model: Decodable,
    memory: Any,
    inputs: dict[str, Any],
    options: dict[str, Any],
    beams: int,
    track_coverage: bool = False,
) -> IncrementalDecoder:
    rows = ops.shape(inputs["source" if "source" in inputs else "prompt"])[0]
    length, use_cache = options["max_length"], options["use_cache"]
    return IncrementalDecoder(
        model, memory, rows, length, beams=beams, use_cache=use_cache, track_coverage=track_coverage
    )
