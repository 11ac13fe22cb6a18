"""`generate` of KerasHub's language models as one call of heed's decoder engine, where it can describe the model.

The engine computes what KerasHub's own loop computes: the same greedy tokens, and a result of the same form. Whatever
it does not know exactly is left to KerasHub, and the report says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from keras import ops
from keras.distribution import distribution

from heed.acceleration import accelerated_models, switch
from heed.acceleration.hub import _quantised
from heed.acceleration.hub._samplers import draw, make_search
from heed.acceleration.hub.cache_readers import PACKAGE
from heed.acceleration.hub.families import describe
from heed.acceleration.hub.parts import Description
from heed.acceleration.hub.recognition import LeftToKerasError
from heed.decoding.compiled import keep
from heed.decoding.engine import TokenStream, machine_reasons
from heed.decoding.engine.packed import PackedModel
from heed.decoding.pieces import UnstableTextError, write_pieces
from heed.ops.backends import current
from heed.ops.core.decoder import PackedDecoder
from heed.ops.core.description import (
    Batch,
    Computed,
    Positions,
    Search,
    map_tensors,
    variables_of,
)
from heed.ops.dispatch import allows_native, get_implementation
from heed.ops.observe import is_watched
from heed.patching import Function, set_here
from heed.weights import CACHES_OF_BEAMS

NAME = f"{PACKAGE}.models.CausalLM.generate"
_INPUTS = {"token_ids", "padding_mask"}


# In a call of `CausalLM.generate` that only reads its arguments: a list for those of its `generate_function`.
_read_arguments: ContextVar[list[Any] | None] = ContextVar(
    "heed_arguments_of_generate", default=None
)


class _ArgumentsReadError(Exception):
    """Ends a call of `CausalLM.generate` whose arguments are known."""


class Generate:
    """A stand-in for a model's `generate_function`.

    Args:
        model: of KerasHub.
        original: its function.
    """

    def __init__(self, model: Any, original: Function) -> None:
        self._model, self._original = model, original

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Generate by the engine or, where it does not do this call, by the original."""
        if (found := _read_arguments.get()) is not None:
            found[:] = args, options
            raise _ArgumentsReadError
        try:
            if len(args) != 1 or set(options) != {"stop_token_ids"}:
                raise LeftToKerasError("the call is not one of `CausalLM.generate`")
            made = generate(self._model, args[0], **options)
        except LeftToKerasError as reason:
            return switch.leave_to_keras(NAME, str(reason), self._original, *args, **options)
        switch.count(NAME)
        return made

    def stream(self, inputs: Any, **options: Any) -> Generator[Any, None, None]:
        """Yield what a call of the model's `generate` adds to one prompt, as the engine writes it.

        Args:
            inputs, options: of `CausalLM.generate`.

        Yields:
            Pieces of text, or without a preprocessor token ids.

        Raises:
            ValueError: if there are several prompts, or the engine does not do this call.
        """
        if not (isinstance(inputs, (str, dict, list, tuple)) or hasattr(inputs, "shape")):
            raise ValueError(f"`source` must be one prompt. Received: source={inputs!r}")
        arguments: list[Any] = []
        with set_here(_read_arguments, arguments), suppress(_ArgumentsReadError):
            # A dictionary is changed by KerasHub.
            self._model.generate(dict(inputs) if isinstance(inputs, dict) else inputs, **options)
        (given,), stops = arguments[0], arguments[1]["stop_token_ids"]
        rows = len(given["token_ids"]) if isinstance(given, dict) and "token_ids" in given else 1
        if rows != 1:
            raise ValueError(
                f"`source` must be one prompt: a stream has the tokens of one text. Received: {rows} prompts"
            )
        try:
            tokens = stream(self._model, given, stops)
        except LeftToKerasError as reason:
            raise ValueError(
                f"`stream` needs heed's decoder engine, which does not do this call: {reason}"
            ) from None
        return tokens if self._model.preprocessor is None else self._write_pieces(tokens)

    def _write_pieces(self, tokens: Generator[int, None, None]) -> Generator[str, None, None]:
        preprocessor = self._model.preprocessor

        def decode(ids: list[int]) -> str:
            row = np.array([ids], np.int32)
            read = {"token_ids": row, "padding_mask": np.ones(row.shape, bool)}
            return preprocessor.generate_postprocess(read)[0]

        try:
            yield from write_pieces(tokens, decode)
        except UnstableTextError as problem:
            raise ValueError(f"the preprocessor {problem}") from None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the original: `tf.function` and `jax.jit` make objects."""
        return getattr(self._original, name)


@dataclass
class Prompts:
    """The prompts of a call."""

    tokens: np.ndarray  # (B, S) int32, with anything after a prompt
    known: np.ndarray  # (B, S), which of them are of the prompt, at least the first
    stops: tuple[int, ...] | None  # ids that end a text


def generate(model: Any, inputs: Any, stop_token_ids: Any) -> dict[str, Any]:
    """Return what a model's `generate_function` returns."""
    call = _prepare(model, inputs, stop_token_ids)
    prompts, search, engine = call.prompts, call.search, call.engine
    uniform = draw(model.sampler, search, len(prompts.tokens))
    tokens, _ = engine.decode(prompts, search, uniform)
    if search.method == "beam" or not _hides_ends(model):
        tokens = _go_on(tokens, prompts, search, uniform, engine)
    made = _make_outputs(inputs, tokens, prompts)
    return made | {name: inputs.get(name) for name in call.returned}


def stream(model: Any, inputs: Any, stop_token_ids: Any) -> Generator[int, None, None]:
    """Yield the tokens that a model's `generate_function` adds to one prompt, as they are decoded."""
    try:
        call = _prepare(model, inputs, stop_token_ids)
    except _NoRoomError:  # KerasHub returns such a prompt as it is
        return TokenStream(lambda _: None).read()
    if call.search.method == "beam":
        raise LeftToKerasError("a beam search may replace any token until it ends")

    def decode(write: Callable[[int], bool]) -> None:
        switch.count(NAME)
        uniform = draw(model.sampler, call.search, 1)
        call.engine.decode(call.prompts, call.search, uniform, write)

    return TokenStream(decode).read()


@dataclass(frozen=True)
class _Call:
    """A call that the engine does; `returned` as in `Description`."""

    prompts: Prompts
    search: Search
    engine: Engine
    returned: tuple[str, ...]


class _NoRoomError(LeftToKerasError):
    """The prompts leave no room for a token."""


def _prepare(model: Any, inputs: Any, stop_token_ids: Any) -> _Call:
    for reason in _reasons():
        raise LeftToKerasError(reason)
    description, formats = describe(model), accelerated_models.formats_of(model)
    stack = replace(description.stack, weights=formats.weights)
    _quantised.check(stack, stack.weights)
    description = replace(description, stack=stack)
    device = _device_of(variables_of(description.stack.embedding)[0].value)
    if "cpu" not in device.lower():
        raise LeftToKerasError(f"the weights lie on {device}, and the engine computes on the CPU")
    prompts = _read_prompts(inputs, stop_token_ids, description)
    search = make_search(
        model.sampler,
        prompts.tokens.shape[1] - 1,
        description.vocabulary,
        prompts.stops or (),
    )
    search = replace(search, cache=formats.cache)
    if search.method == "beam" and len(set(prompts.known.sum(1))) > 1:
        raise LeftToKerasError("the prompts of a beam search differ in length")
    if search.method == "beam" and search.cache not in CACHES_OF_BEAMS:
        raise LeftToKerasError(f"a beam search has no cache of {search.cache}")
    engine = keep(model, ("hub", _key_of(description)), lambda: Engine(description))
    engine.prepare(search.length)  # which may raise, before the sampler's seed moves on
    return _Call(prompts, search, engine, description.returned)


def _device_of(x: Any) -> str:
    """Return the name of the device of a tensor, as its framework writes it."""
    return str(getattr(x, "device", "the CPU"))


def _reasons() -> list[str]:
    """Return why the engine runs for no model of KerasHub here and now; empty if it does."""
    found = machine_reasons()
    if not found and current().is_tracing():
        found.append("a compiled function calls it, and the engine needs numbers")
    if not allows_native():
        found.append(f'heed.set_implementation chose "{get_implementation()}"')
    if is_watched():
        found.append("heed.inspect captures the attention")
    if distribution() is not None:
        found.append("a distribution of Keras splits the model")
    serving = sys.modules.get(f"{PACKAGE}.src.vllm.context")
    if serving is not None and serving.get_vllm_context() is not None:
        found.append("vLLM serves the model")
    return found


def _read_prompts(inputs: Any, stop_token_ids: Any, description: Description) -> Prompts:
    if not isinstance(inputs, dict) or set(inputs) - description.ignored != _INPUTS:
        raise LeftToKerasError("the inputs are not `token_ids` and `padding_mask` alone")
    tokens = np.asarray(ops.convert_to_numpy(inputs["token_ids"]))
    mask = np.asarray(ops.convert_to_numpy(inputs["padding_mask"]))
    if tokens.ndim != 2 or tokens.shape != mask.shape or tokens.dtype.kind not in "iu":
        raise LeftToKerasError(
            "`token_ids` and `padding_mask` are not integers (B, S) and their mask"
        )
    known, length = mask.astype(bool), tokens.shape[1]
    if (mask != known).any():
        raise LeftToKerasError("`padding_mask` holds other numbers than 0 and 1")
    if not len(tokens) or not known[:, :1].all() or (known[:, 1:] > known[:, :-1]).any():
        raise LeftToKerasError("each prompt must have tokens, and its padding after them")
    if known.all():
        raise _NoRoomError("the prompts are as long as `max_length`")
    if description.longest is not None and length > description.longest:
        raise LeftToKerasError(f"the engine knows {description.longest} positions of this model")
    vocabulary = description.vocabulary
    if ((tokens < 0) | (tokens >= vocabulary)).any():
        raise LeftToKerasError("a token is not of the vocabulary")
    stops = _read_stops(stop_token_ids)
    if stops is not None and np.isin(tokens[~known], stops).any():
        raise LeftToKerasError("a stop token pads the prompts")
    return Prompts(tokens.astype(np.int32), known, stops)


def _read_stops(stop_token_ids: Any) -> tuple[int, ...] | None:
    if stop_token_ids is None:
        return None
    whole = isinstance(stop_token_ids, (list, tuple)) and stop_token_ids
    numbers = [x for x in stop_token_ids or () if isinstance(x, (int, np.integer))] if whole else []
    if not numbers or len(numbers) < len(stop_token_ids):
        raise LeftToKerasError("`stop_token_ids` is not a list of whole numbers")
    if not all(-(2**31) <= x < 2**31 for x in numbers):
        raise LeftToKerasError("a stop token is no 32-bit number")
    return tuple(map(int, numbers))


def _hides_ends(model: Any) -> bool:
    """Return whether the preprocessor of KerasHub cuts what follows the end of a text: the result holds none of it."""
    method = getattr(type(model.preprocessor), "generate_postprocess", None)
    return getattr(method, "__module__", "").startswith(f"{PACKAGE}.src.models.")


def _key_of(description: Description) -> tuple[Any, ...]:
    def key_of(leaf: Any) -> Any:
        if isinstance(leaf, Computed):
            return leaf.function, tuple(map(id, leaf.variables)), leaf.settings
        return id(leaf)

    rotations = tuple(one.key for one in description.rotations)
    parts = (description.stack, description.table)
    return *map_tensors(parts, key_of), rotations, description.slopes


class Engine:
    """The packed weights of a model, and its tables of positions."""

    def __init__(self, description: Description) -> None:
        self._description = description
        self._packed = PackedModel(
            description.stack, None, (description.table,), check=_require_finite
        )
        self._tables: dict[int, Positions] = {}

    def prepare(self, length: int) -> tuple[PackedDecoder, Positions]:
        """Return the weights of now, and the tables of `length` tokens."""
        version = self._packed.version()
        if length not in self._tables:
            self._tables = {length: self._make_positions(length)}  # of the last length alone
        table = version.tables[0]
        learned = None if table is None else table[:length]
        return version.decoder, replace(self._tables[length], table=learned)

    def decode(
        self,
        prompts: Prompts,
        search: Search,
        uniform: np.ndarray | None,
        write: Callable[[int], bool] | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the tokens (B, 1 + L), -1 after their end, and their scores (B,) or None.

        `write` gets each token of the only prompt, as soon as it is decoded, and returns whether to go on.
        """
        decoder, positions = self.prepare(search.length)
        given = np.where(prompts.known, prompts.tokens, -1)
        nothing = np.zeros((len(given), 0), np.int32)
        batch = Batch(
            nothing,
            nothing == 0,
            positions=positions,
            prompt=given[:, 1:],
            uniform=uniform,
            first_tokens=prompts.tokens[:, 0],
        )
        on_token = None if write is None else lambda _, token: write(token)
        tokens, scores = decoder.decode(batch, search, current().native_threads(), on_token)
        return np.concatenate(
            [given[:, :1], tokens[:, 0]], axis=1
        ), None if scores is None else scores[:, 0]

    def _make_positions(self, length: int) -> Positions:
        given = self._description
        rotation = bias = None
        if given.rotations:
            rotation = np.stack([one.table(length) for one in given.rotations])
        if given.slopes is not None:
            distances = np.arange(length - 1, -1, -1, dtype=np.float32)
            bias = -np.array(given.slopes, np.float32)[:, None] * distances
        return Positions(None, rotation, bias)


def _require_finite(weight: np.ndarray) -> None:
    if not np.isfinite(weight.sum(dtype=np.float64)):
        raise LeftToKerasError("a weight is not finite")


def _go_on(
    tokens: np.ndarray, prompts: Prompts, search: Search, uniform: np.ndarray | None, engine: Engine
) -> np.ndarray:
    """Continue the texts that ended before others: KerasHub writes all of them until the last one has ended."""
    written = (tokens >= 0).sum(1)
    length = int(written.max())
    early = written < length
    if not early.any():
        return tokens
    begun, known = tokens[early, :length], tokens[early, :length] >= 0
    if search.method == "beam":  # whose other hypotheses may come to lead
        begun, known = prompts.tokens[early, :length], prompts.known[early, :length]
    rest = replace(search, length=length - 1, stop_tokens=())
    uniform = None if uniform is None else uniform[early, : length - 1]
    tokens[early, :length], _ = engine.decode(Prompts(begun, known, None), rest, uniform)
    return tokens


def _make_outputs(inputs: Any, tokens: np.ndarray, prompts: Prompts) -> dict[str, Any]:
    tokens = np.where(tokens < 0, prompts.tokens, tokens)
    mask = np.ones(tokens.shape, bool)
    if prompts.stops is not None:
        ends = np.isin(tokens, prompts.stops) & ~prompts.known
        mask = np.cumsum(ends, axis=1) - ends == 0
    kind = ops.convert_to_tensor(inputs["token_ids"]).dtype
    return {
        "token_ids": ops.cast(ops.convert_to_tensor(tokens), kind),
        "padding_mask": ops.convert_to_tensor(mask),
    }
