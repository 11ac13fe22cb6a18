"""The rows of `python -m benchmarks language_models`: each function measures in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

import heed
from benchmarks.results import Row
from benchmarks.turns import SMALLER, alternate, attempt, bar, seconds_of
from benchmarks.worker import resident_memory

_GENERATE = "keras_hub.models.CausalLM.generate"
_PRECISIONS = {"float32": "float32", "int8": "q8_0", "int4": "q4_0"}
_PEERS = {"float32": "f32", "int8": "Q8_0", "int4": "Q4_0"}
# Bits of a weight, its share of a block's factor included.
_BITS = {"float32": 32, "int8": 8.5, "int4": 4.5}
_DECODING = {"float32": 1.0, "int8": 1.0, "int4": 0.95}
_BACKENDS = {
    "tensorflow": ("TensorFlow (XLA)", 4.0),
    "jax": ("JAX", 4.0),
    "torch": ("PyTorch", 8.0),
}


class Sizes(NamedTuple):
    """The sizes of the model, and how many tokens each measurement reads and writes."""

    vocabulary: int = 32_000
    layers: int = 24
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 64
    feed_forward: int = 2816
    prompt: int = 32  # before the tokens of `generate`
    lengths: tuple[int, ...] = (64, 480)  # of these
    # Tokens of stock KerasHub from which its time for all is computed.
    portion: tuple[int, int] = (4, 12)
    decoded: int = 32
    read: int = 512
    several: int = 32  # tokens of each of several texts
    texts: int = 100
    steps: int = 10

    @property
    def width(self) -> int:
        """D."""
        return self.heads * self.head_dim

    @property
    def parameters(self) -> int:
        """The weights of all tables."""
        attention = 2 * (self.heads + self.kv_heads) * self.head_dim
        layer = self.width * (attention + 3 * self.feed_forward)
        return self.layers * layer + 2 * self.vocabulary * self.width

    @property
    def read_a_token(self) -> int:
        """The weights that a token reads: not those of other tokens' embeddings."""
        return self.parameters - self.vocabulary * self.width


WHOLE = Sizes()
TINY = Sizes(600, 2, 4, 2, 16, 96, 8, (8, 16), (2, 4), 4, 24, 4, 5, 2)
SIZES = TINY if SMALLER else WHOLE
# A model that trains for about a minute.
TRAINED = SIZES._replace(
    vocabulary=min(SIZES.vocabulary, 1000),
    layers=min(SIZES.layers, 4),
    heads=4,
    kv_heads=2,
    feed_forward=704,
)


def make_model(sizes: Sizes = SIZES) -> Any:
    """Return a Llama with fixed random weights."""
    import keras_hub

    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=sizes.vocabulary,
        num_layers=sizes.layers,
        num_query_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        hidden_dim=sizes.width,
        intermediate_dim=sizes.feed_forward,
    )
    model = keras_hub.models.LlamaCausalLM(backbone=backbone, preprocessor=None)
    model.compile(sampler="greedy")
    return model


def prompts(*lengths: int, room: int, sizes: Sizes = SIZES) -> dict[str, np.ndarray]:
    """Return the inputs of `generate`: a prompt of each length, with room for so many tokens in all."""
    known = np.arange(room)[None] < np.array(lengths)[:, None]
    tokens = np.random.default_rng(0).integers(3, sizes.vocabulary, known.shape)
    return {"token_ids": np.where(known, tokens, 0).astype("int32"), "padding_mask": known}


def generate(model: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return the tokens (B, room)."""
    found = model.generate(dict(inputs), stop_token_ids=None)["token_ids"]
    return keras.ops.convert_to_numpy(found)


class Reading:
    """Measures how fast the machine's cores together read so many bytes; it takes turns with what reads weights.

    Attributes:
        rates: of each turn, in bytes a second: that of its fastest reading, as a limit is what can be reached.
    """

    def __init__(self, size: float) -> None:
        count = int(os.environ.get("OMP_NUM_THREADS", 0)) or os.cpu_count() or 1
        self._arrays = [np.ones(max(1, int(size / 4 / count)), np.int32) for _ in range(count)]
        self._pool = ThreadPoolExecutor(count)  # NumPy releases the GIL
        self.rates: list[float] = []

    def __call__(self) -> None:
        """Take one turn."""
        size = sum(array.nbytes for array in self._arrays)
        self.rates.append(size / min(seconds_of(self._read) for _ in range(5)))

    def _read(self) -> None:
        list(self._pool.map(np.max, self._arrays))

    def rate(self) -> float:
        """Return the median of the rates."""
        return statistics.median(self.rates)


def bytes_a_token(weights: str) -> float:
    """Return the bytes of weights that a token reads in a format."""
    return SIZES.read_a_token * _BITS[weights] / 8


def accelerate_in(model: Any, weights: str) -> Any:
    """Accelerate a model with weights in a format."""
    options: dict[str, Any] = {} if weights == "float32" else {"weights": weights}
    return heed.accelerate(model, **options)


def require_engine(acceleration: Any) -> None:
    """Raise unless the engine has generated."""
    report = acceleration.report()
    if not report.calls.get(_GENERATE):
        left = next((x for x in report.left_to_keras if x.startswith(_GENERATE)), "it did not run")
        raise RuntimeError(f"the engine did not generate: {left}")


def measure_generate(rounds: int) -> Iterator[Row | str]:
    """Yield `generate` of KerasHub, accelerated in float32 and in int8, and stock."""
    title, least = _BACKENDS[keras.config.backend()]
    stock = make_model()
    fast = {"float32": make_model(), "int8": make_model()}
    for model in fast.values():
        model.set_weights(stock.get_weights())
    acceleration = {weights: accelerate_in(model, weights) for weights, model in fast.items()}
    read = Reading(bytes_a_token("float32"))
    few, more = SIZES.portion
    for length in SIZES.lengths:
        room = SIZES.prompt + length
        # Stock KerasHub reads the whole room whatever the prompt is, and each token costs the same.
        short, long = (prompts(room - count, room=room) for count in (few, more))
        expected, same = generate(stock, long), {}
        for weights, model in fast.items():
            same[weights] = np.mean((generate(model, long) == expected)[:, -more:])
            require_engine(acceleration[weights])
        inputs = prompts(SIZES.prompt, room=room)
        sides: list[Callable[[], object]] = [
            partial(generate, stock, short),
            partial(generate, stock, long),
            read,
        ]
        sides += [partial(generate, model, inputs) for model in fast.values()]
        times: list[list[float]] = [[] for _ in sides]
        for turn in range(max(2, rounds - 1)):
            # Many tokens are a sample large enough.
            some = sides if turn == 0 or length == SIZES.lengths[0] else sides[:3]
            for side, found in zip(some, times, strict=False):
                found.append(seconds_of(side))
        start, end, _, *ours = map(statistics.median, times)
        theirs = start + (length - few) * max(end - start, 0) / (more - few)
        what = f"{title}: `generate` of {length} tokens, "
        for weights, took in zip(fast, ours, strict=True):
            note = f"{length / took:.1f} and {length / theirs:.1f} tokens a second"
            if weights != "float32":
                note += f"; {same[weights]:.0%} of {more} tokens the same"
            elif same[weights] < 1:
                note += "; OTHER TOKENS"
            name = f"{what}accelerated in {weights} against stock KerasHub"
            yield Row(name, theirs / took, bar(least), unit="times", note=note)
        rate = read.rate()
        most = rate / bytes_a_token("float32")
        note = f"{most:.1f} tokens a second: {bytes_a_token('float32') / 1e9:.2f} GB a token at {rate / 1e9:.1f} GB/s"
        name = f"{what}the most that memory allows in float32 against stock KerasHub"
        yield Row(name, most * theirs / length, unit="times", note=note)


def measure_float32(rounds: int) -> Iterator[Row | str]:
    """Return decoding and reading with float32 weights against llama.cpp's."""
    return measure_weights("float32", rounds)


def measure_int8(rounds: int) -> Iterator[Row | str]:
    """Return the same with 8 bits."""
    return measure_weights("int8", rounds)


def measure_int4(rounds: int) -> Iterator[Row | str]:
    """Return the same with 4 bits."""
    return measure_weights("int4", rounds)


def measure_weights(weights: str, rounds: int) -> Iterator[Row | str]:
    """Yield memory, decoding and reading with weights in a format, and the share of the memory's bandwidth."""
    tiny = make_model(TINY)
    with heed.accelerate(tiny):  # loads libraries and starts threads
        generate(tiny, prompts(4, room=6, sizes=TINY))
    del tiny
    nothing = settled_memory()
    model = make_model()
    size = SIZES.parameters * _BITS[weights] / 8 / 2**20
    before = nothing if weights == "float32" else settled_memory()
    acceleration = accelerate_in(model, weights)
    one = prompts(SIZES.prompt, room=SIZES.prompt + SIZES.decoded)
    generate(model, prompts(SIZES.prompt, room=SIZES.prompt + 1))
    require_engine(acceleration)
    added = settled_memory() - before
    yield Row(
        f"{weights}: resident memory / the weights in this format",
        added / size,
        bar(1.2),
        at_most=True,
        unit="times",
        note=f"{added:.0f} MiB of {size:.0f}"
        + ("" if weights == "float32" else ", beside the float32 variables"),
    )
    yield from attempt(f"{weights}: llama.cpp", _against_llama_cpp(weights, model, one, rounds))


def _against_llama_cpp(
    weights: str, model: Any, one: dict[str, np.ndarray], rounds: int
) -> Iterator[Row]:
    length = one["token_ids"].shape[1]
    context = llama_cpp_context(model, weights, max(length, SIZES.read + 1))
    prompt = one["token_ids"][0, : SIZES.prompt].tolist()

    def decode(count: int) -> list[int]:
        context.restart()
        tokens, logits = [*prompt], context.read(prompt)
        for _ in range(count):
            tokens.append(int(logits.argmax()))
            if len(tokens) < len(prompt) + count:
                logits = context.read(tokens[-1:])
        return tokens

    read = prompts(SIZES.read, room=SIZES.read + 1)
    text = read["token_ids"][0, :-1].tolist()

    def read_theirs() -> int:
        context.restart()
        return int(context.read(text).argmax())

    same = np.mean(generate(model, one)[0] == decode(SIZES.decoded))
    first = prompts(SIZES.prompt, room=SIZES.prompt + 1)
    memory = Reading(bytes_a_token(weights))
    ours, theirs, our_start, their_start, _ = alternate(
        lambda: generate(model, one),
        lambda: decode(SIZES.decoded),
        lambda: generate(model, first),
        lambda: decode(1),
        memory,
        rounds=rounds,
        quartile=2,
    )
    # Without the time of reading the prompt and writing the first token.
    rates = [
        (SIZES.decoded - 1) / max(whole - start, 1e-9)
        for whole, start in ((ours, our_start), (theirs, their_start))
    ]
    note = f"{rates[0]:.1f} and {rates[1]:.1f} tokens a second; {same:.0%} the same tokens{beyond_limit()}"
    name = f"{weights}: decoding, against llama.cpp {_PEERS[weights]}"
    yield Row(name, rates[0] / rates[1], bar(_DECODING[weights]), unit="times", note=note)
    rate, most = bytes_a_token(weights) * rates[0], memory.rate()
    name = f"{weights}: share of the memory's bandwidth in decoding"
    note = f"{rate / 1e9:.1f} of {most / 1e9:.1f} GB/s"
    yield Row(name, rate / most, bar(0.75), note=note)
    ours, theirs = alternate(
        lambda: generate(model, read), read_theirs, rounds=max(2, rounds - 1), quartile=2
    )
    note = f"{SIZES.read / ours:.0f} and {SIZES.read / theirs:.0f} tokens a second{beyond_limit()}"
    name = f"{weights}: reading {SIZES.read} tokens, against llama.cpp {_PEERS[weights]}"
    yield Row(name, theirs / ours, bar(1.0), unit="times", note=note)
    context.close()


def llama_cpp_context(model: Any, weights: str, length: int) -> Any:
    """Return llama.cpp with the weights of a model."""
    from heed.export import gguf
    from heed.export.runners._gguf import Context

    threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or None
    with tempfile.TemporaryDirectory(prefix="heed-benchmark-") as folder:
        file = Path(folder) / "model.gguf"
        gguf.write(model, file, precision=_PRECISIONS[weights])
        return Context(file, length, threads)


def beyond_limit() -> str:
    """Return what notes say where heed is held to AVX2 and llama.cpp, which cannot be, was built for more."""
    import llama_cpp

    built = "AVX512 = 1" in llama_cpp.llama_print_system_info().decode()
    held = os.environ.get("HEED_INSTRUCTION_SET") in {"avx2", "baseline"}
    return "; llama.cpp is built for AVX-512" if built and held else ""


def settled_memory() -> float:
    """Return the resident memory in MiB, after all that is free has gone back to the system."""
    gc.collect()
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    return resident_memory()


def measure_several(rounds: int) -> Iterator[Row | str]:
    """Yield eight texts of different lengths at once, against one."""
    model = make_model()
    acceleration = heed.accelerate(model)
    lengths = np.linspace(SIZES.prompt // 4, 2 * SIZES.prompt, 8).astype(int)
    # A text of KerasHub is as long as its row: its tokens are those after its prompt.
    room = int(lengths.max()) + SIZES.several
    many, one = prompts(*lengths, room=room), prompts(int(lengths.max()), room=room)
    generate(model, one)
    require_engine(acceleration)
    seconds = alternate(
        lambda: generate(model, many), lambda: generate(model, one), rounds=rounds, quartile=2
    )
    rates = [
        int((room - given).sum()) / took
        for given, took in zip((lengths, lengths[-1:]), seconds, strict=True)
    ]
    note = f"{rates[0]:.1f} and {rates[1]:.1f} tokens a second"
    name = "8 prompts of different lengths at once, tokens a second, against one"
    yield Row(name, rates[0] / rates[1], bar(2.5), unit="times", note=note)


def plant_outliers(model: Any) -> None:
    """Scale what writes a channel of the residual stream by 100."""
    _scale(model.backbone.token_embedding.embeddings, 100.0)
    for layer in model.backbone.transformer_layers:
        _scale(layer._self_attention_layer._output_dense.kernel, 100.0)
        _scale(layer._feedforward_output_dense.kernel, 100.0)


def _scale(variable: Any, by: float) -> None:
    array = np.array(keras.ops.convert_to_numpy(variable))
    array[..., 5] *= by  # the channel
    variable.assign(array)


def made_texts(count: int, length: int, vocabulary: int, seed: int) -> np.ndarray:
    """Return texts (count, length) of words of one to four tokens, each followed by one of four others."""
    language = np.random.default_rng(0)
    words = [
        language.integers(3, vocabulary, language.integers(1, 5)).tolist()
        for _ in range(vocabulary // 5)
    ]
    followers = language.integers(0, len(words), (len(words), 4))
    drawn = np.random.default_rng(seed)
    texts = np.empty((count, length), np.int32)
    for text in texts:
        word, tokens = drawn.integers(len(words)), []
        for follower in drawn.choice(4, length, p=[0.5, 0.25, 0.125, 0.125]):
            tokens.extend(words[word])
            word = followers[word, follower]
        text[:] = tokens[:length]
    return texts


def train(model: Any, sizes: Sizes) -> float:
    """Train a model on made texts. Returns how often it finds the next token of others."""
    steps, batch, length = 3 if SMALLER else 200, 32, 33
    texts = made_texts(steps * batch, length, sizes.vocabulary, 1)
    inputs, targets = (
        lambda x: {"token_ids": x[:, :-1], "padding_mask": np.ones_like(x[:, :-1])},
        lambda x: x[:, 1:],
    )
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, steps)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        sampler="greedy",
    )
    model.fit(inputs(texts), targets(texts), batch_size=batch, verbose=0, shuffle=False)
    others = made_texts(100, length, sizes.vocabulary, 2)
    logits = model.predict(inputs(others), verbose=0)
    return float(np.mean((logits.argmax(-1) == targets(others))[:, 7:]))


def outlier_model(sizes: Sizes, planted: bool = True, weights: Any = None) -> tuple[Any, Any]:
    """Return a model whose hidden states have a large channel if it is `planted`, stock and to be accelerated.

    Its consumers, the norms' scales, are divided by what the channel is multiplied by. The norms divide by the RMS of
    all channels, so the large channel changes what the model computes; both have it.
    """
    models = make_model(sizes), make_model(sizes)
    for model in models:
        model.set_weights(models[0].get_weights() if weights is None else weights)
    for model in models if planted else ():
        plant_outliers(model)
        norms = [model.backbone.layer_norm]
        for layer in model.backbone.transformer_layers:
            norms += [layer._self_attention_layernorm, layer._feedforward_layernorm]
        for norm in norms:
            _scale(norm.scale, 0.01)
    return models


def measure_outliers(rounds: int) -> Iterator[Row | str]:
    """Tokens in 8 bits of models with a planted outlier and of the same without; distributions of one."""
    del rounds
    trained = make_model(TRAINED)
    right = train(trained, TRAINED)
    sizes, start = SIZES._replace(layers=min(SIZES.layers, 4)), 8
    about = f"trained: it finds {right:.0%} of the next tokens of other texts"
    beginnings = made_texts(TRAINED.texts, start, TRAINED.vocabulary, 3)
    for planted in (True, False):
        models = outlier_model(TRAINED, planted, trained.get_weights())
        yield from _tokens_in_8_bits(TRAINED, models, "trained weights", planted, beginnings, about)
    beginnings = prompts(*[start] * sizes.texts, room=start, sizes=sizes)["token_ids"]
    for planted in (True, False):
        models = outlier_model(sizes, planted)
        yield from _tokens_in_8_bits(sizes, models, "random weights", planted, beginnings)
    yield from attempt("the KL of int8", _divergence(sizes))


def _tokens_in_8_bits(
    sizes: Sizes,
    models: tuple[Any, Any],
    weights: str,
    planted: bool,
    beginnings: np.ndarray,
    about: str = "",
) -> Iterator[Row | str]:
    """Yield the share of float32's greedy tokens that other formats choose after the same tokens."""
    what = f"{weights}, {'a channel of the hidden states times 100' if planted else 'no channel enlarged'}"
    plain, rounded = models
    exact = heed.accelerate(plain)
    start = beginnings.shape[1]
    room = start + sizes.steps
    given = prompts(*[start] * sizes.texts, room=room, sizes=sizes)
    given["token_ids"][:, :start] = beginnings
    texts = generate(plain, given)
    require_engine(exact)

    def row(name: str, found: list[np.ndarray], least: float | None = None) -> Row:
        share = 100 * float(np.mean(np.stack(found, 1) == texts[:, start:]))
        note = f"{sizes.texts * sizes.steps:,} tokens, {sizes.layers} layers of width {sizes.width}"
        note = "; ".join(filter(None, [note, about]))
        return Row(f"{name}, {what}: greedy tokens of float32", share, least, unit="%", note=note)

    # bfloat16 shows what rounding changes that no outlier makes worse.
    for form, least in (("int8", bar(99.0) if planted else None), ("bfloat16", None)):
        with accelerate_in(rounded, form) as acceleration:
            ours = []
            for end in range(start + 1, room + 1):
                known = np.broadcast_to(np.arange(end) < end - 1, (sizes.texts, end))
                inputs = {"token_ids": np.where(known, texts[:, :end], 0), "padding_mask": known}
                ours.append(generate(rounded, inputs)[:, -1])
            require_engine(acceleration)
        yield row(form, ours, least)

    def of_llama_cpp() -> Iterator[Row]:
        context = llama_cpp_context(plain, "int8", room)

        def read(text: list[int]) -> list[int]:
            context.restart()
            parts = [text[:start], *([token] for token in text[start:-1])]
            return [int(context.read(part).argmax()) for part in parts]

        theirs = np.array([read(text) for text in texts.tolist()])
        context.close()
        yield row("llama.cpp's Q8_0", [*theirs.T])

    yield from attempt("tokens of llama.cpp's Q8_0", of_llama_cpp())


def _divergence(sizes: Sizes) -> Iterator[Row]:
    """Yield the KL of 8 bits from float32, against llama.cpp's, over a vocabulary that the engine scores whole."""
    from heed.acceleration.hub import _generation, families
    from heed.ops.backends import current
    from heed.ops.core.description import Batch, Search

    sizes = sizes._replace(vocabulary=32, texts=4 * sizes.texts)
    model, _ = outlier_model(sizes)
    given = prompts(*[11] * sizes.texts, room=12, sizes=sizes)

    def distributions(weights: str) -> np.ndarray:
        description = families.describe(model)
        stack = replace(description.stack, weights=weights)
        engine = _generation.Engine(replace(description, stack=stack))
        decoder, positions = engine.prepare(11)
        ids, nothing = given["token_ids"], np.zeros((sizes.texts, 0), np.int32)
        batch = Batch(
            nothing,
            nothing == 0,
            positions=positions,
            prompt=np.where(given["padding_mask"], ids, -1)[:, 1:],
            first_tokens=ids[:, 0],
        )
        search = Search(11, -1, -1, -1, method="beam", beam_size=32, results=32, return_scores=True)
        tokens, scores = decoder.decode(batch, search, current().native_threads())
        found = np.empty((sizes.texts, sizes.vocabulary))
        np.put_along_axis(found, np.asarray(tokens)[..., -1], np.asarray(scores), axis=1)
        return found

    context = llama_cpp_context(model, "int8", 16)

    def read(tokens: list[int]) -> np.ndarray:
        context.restart()
        return log_softmax(context.read(tokens))

    theirs = np.stack([read(row[:-1]) for row in given["token_ids"].tolist()])
    logits = keras.ops.convert_to_numpy(
        model({**given, "padding_mask": np.ones_like(given["token_ids"])})
    )
    exact = log_softmax(logits[:, -2])  # after the last token of the prompt
    ours = distributions("int8")
    kls = [float(np.mean((np.exp(exact) * (exact - x)).sum(-1))) for x in (ours, theirs)]
    yield Row(
        "int8 with that channel: KL from float32 / llama.cpp's Q8_0",
        kls[0] / kls[1],
        bar(1.0),
        at_most=True,
        note=f"{kls[0]:.2g} and {kls[1]:.2g} nats, {sizes.texts} texts, 32 tokens in the vocabulary",
    )


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Return log-probabilities of logits."""
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
