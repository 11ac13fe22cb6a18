"""Writes language models as GGUF files, for llama.cpp and programs that are built on it.

llama.cpp has no graph: a file names an architecture, whose code computes with the file's tables. So `write` takes what
heed's decoder engine knows of a model (`DecoderStack`), looks for the architecture with this meaning, and refuses what
it lacks by name. `ARCHITECTURES` is the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
from numpy.typing import NDArray

from heed.acceleration.hub.families import describe
from heed.acceleration.hub.recognition import LeftToKerasError
from heed.acceleration.hub.tokenizer import UNUSED, Tokenizer, describe_tokenizer
from heed.decoding.engine.describe import describe_decoder, describe_positions, rotary_bases
from heed.export.errors import ExportError, ExportOptionError
from heed.export.formats import FORMATS, ExportJob
from heed.files import temporary_path
from heed.models import LanguageModel
from heed.number_checks import check_integer
from heed.ops.core.description import (
    Computed,
    DecoderLayer,
    DecoderStack,
    Dense,
    Norm,
    resolve,
    variables_of,
)

if TYPE_CHECKING:
    from heed.export.programs import Program

_FORMAT = FORMATS["gguf"]
CONTEXT = 8192  # tokens of a text, unless the caller says otherwise
_WAVELENGTH = 10_000.0  # of heed's rotary positions
_NO_FORM = "llama.cpp has no form of"
# Names of the package, by precision.
_TYPES = {"float32": "F32", "bfloat16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
_NAMES = {
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "hidden": "ffn_gate",
    "up": "ffn_up",
    "back": "ffn_down",
}
# The fields of a stack, its layers and attentions that are read here; any other must have its default.
_FIELDS = {
    *("heads", "kv_heads", "head_dim", "value_dim", "embedding", "embedding_scale", "layers"),
    *("final_norm", "logits", "logit_soft_cap", "weights", "norm_first", "activation"),
    *("self_norm", "self_attention", "feed_forward_norm", "hidden", "up", "back"),
    *("self_post_norm", "feed_forward_post_norm", "query", "key", "value", "output"),
    *("query_norm", "key_norm", "scale", "rotation", "soft_cap", "sliding_window"),
}
_Array = NDArray[np.float32]


@dataclass(frozen=True)
class Architecture:
    """A language model that llama.cpp has code for: rotated grouped heads, gated feed-forward parts, RMS norms."""

    name: str  # in the file
    activation: str = "silu"  # of the feed-forward parts, as in `heed.ops.core.description`
    biases: tuple[str, ...] = ()  # the dense layers that have biases
    may_lack_biases: bool = False  # whether any of them may have none; else the file has zeros
    logit_bias: bool = False  # whether logits may have a bias
    post_norms: bool = False  # whether what a part adds to its input is normalised
    head_norms: bool = False  # whether queries and keys are
    soft_cap: bool = False  # whether attention scores have a soft-cap
    logit_soft_cap: bool | None = False  # whether logits have one; None: they may
    # n: every n-th layer sees the whole text, the others a window. None: no layer has a window.
    windows: int | None = None
    needs_windows: bool = False  # whether a file without a window means another one
    neighbours: bool = (
        False  # whether a feature is rotated with its neighbour, not that H / 2 further
    )
    scales_embeddings: bool = False  # whether embedded tokens are multiplied by sqrt(D)
    tied: bool = False  # whether the table of embeddings gives the logits too
    sets_frequencies: bool = False  # whether a file can set each frequency of the rotation
    # The layers of a model with 1 / sqrt(D // N) as the factor of q.k; others have 1 / sqrt(H).
    own_scale: int | None = None

    def scale(self, model: LanguageModelData) -> float:
        """Return the factor of q.k that llama.cpp takes."""
        if len(model.stack.layers) == self.own_scale:
            return 1 / math.sqrt(model.width // model.stack.heads)
        return 1 / math.sqrt(model.stack.head_dim)

    def has_window(self, number: int) -> bool:
        """Return whether a layer has a window, if layers have one."""
        return self.windows is not None and number % self.windows < self.windows - 1


_GEMMA = Architecture("gemma", "gelu_tanh", scales_embeddings=True, tied=True)
ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture(
            "llama",
            biases=("query", "key", "value", "output", "hidden", "up", "back"),
            may_lack_biases=True,
            neighbours=True,
            sets_frequencies=True,
        ),
        Architecture("qwen2", biases=("query", "key", "value"), logit_bias=True),
        Architecture("qwen3", head_norms=True),
        _GEMMA,
        replace(
            _GEMMA,
            name="gemma2",
            post_norms=True,
            soft_cap=True,
            logit_soft_cap=True,
            windows=2,
            needs_windows=True,
            own_scale=46,
        ),
        replace(
            _GEMMA,
            name="gemma3",
            post_norms=True,
            head_norms=True,
            logit_soft_cap=None,
            windows=6,
            tied=False,
            own_scale=62,
        ),
    )
}


@dataclass(frozen=True)
class Rotation:
    """A rotation of queries and keys."""

    frequencies: NDArray[np.float64]  # (H / 2,), radians a token
    base: float  # pair c would have the frequency base^(-2 c / H)

    @classmethod
    def read(cls, table: Any, base: float) -> Rotation:
        """Return the rotation of a table (L, H), a row of cosines, then sines, for each position."""
        cosines, sines = np.split(np.asarray(table, np.float64)[1], 2)
        if not np.allclose(np.hypot(cosines, sines), 1, rtol=0, atol=1e-5):
            raise ExportError(f"{_NO_FORM} a rotation that scales vectors too, as YaRN's does")
        return cls(np.arctan2(sines, cosines), base)

    def factors(self) -> NDArray[np.float64]:
        """Return by what the frequency of each pair is divided."""
        pairs = np.arange(len(self.frequencies)) / len(self.frequencies)
        return self.base**-pairs / self.frequencies

    def factor(self) -> float | None:
        """Return that number if there is only one."""
        factors = self.factors()
        if np.ptp(factors) > 1e-5 * factors.max():  # the frequencies are of float32 sines
            return None
        return round(float(np.median(factors)), 4)


@dataclass(frozen=True)
class LanguageModelData:
    """A language model as data."""

    name: str  # for people
    stack: DecoderStack  # its layers
    rotations: tuple[Rotation, ...]  # by their numbers in the layers
    tokenizer: Tokenizer | None  # None if there is none, or it is not known
    reasons: tuple[str, ...] = ()  # options that no architecture has

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return int(variables_of(self.stack.embedding)[0].shape[0])

    @property
    def width(self) -> int:
        """D."""
        return int(variables_of(self.stack.embedding)[0].shape[1])

    @property
    def feed_forward(self) -> int:
        """The width of feed-forward parts."""
        kernel = variables_of(self.stack.layers[0].hidden.kernel)[0]
        return math.prod(kernel.shape) // self.width

    @property
    def logit_bias(self) -> _Array | None:
        """(V,), or None where it is 0."""
        logits = self.stack.logits
        bias = None if logits is None or logits.bias is None else _array(logits.bias)
        return bias if bias is not None and bias.any() else None

    @property
    def tied(self) -> bool:
        """Whether the table of embeddings gives the logits too."""
        logits = self.stack.logits
        return logits is not None and logits.kernel is self.stack.embedding


def write_artefact(job: ExportJob, folder: Path) -> list[str]:
    """Write model.gguf. See `ExportFormat`."""
    context = job.options["context"]
    return write(job.model, folder / "model.gguf", precision=job.precision, context=context)


def programs_of(model: Any, source: Any = None) -> list[Program]:
    """Return the programs of a model, as `heed.export.programs.programs_of` does.

    A model of KerasHub has a single one, without the mask of padding, which llama.cpp has not.
    """
    import tensorflow as tf

    from heed.export import programs

    if not _is_of_hub(model):
        return programs.programs_of(model, source)

    def serve(token_ids: Any) -> dict[str, Any]:
        inputs = {"token_ids": token_ids, "padding_mask": tf.ones_like(token_ids, tf.bool)}
        return {"logits": model(inputs, training=False)}

    ids = tf.TensorSpec((None, None), tf.int32, "token_ids")
    return [programs.Program(programs.SERVE, serve, {"token_ids": ids}, variables=model.variables)]


def write(
    model: Any, file: Path | str, *, precision: str = "float32", context: int | None = None
) -> list[str]:
    """Write a GGUF file, on any backend of Keras.

    Args:
        model: a `LanguageModel`, or a Llama, Llama 3, Mistral, Gemma (1, 2, 3 for text), Qwen 2, Qwen 2.5 or Qwen 3 of
            KerasHub in float32. Its tokenizer goes with it.
        file: where it goes. It appears when it is whole.
        precision: how to store tables: "float32", "bfloat16", "q8_0" or "q4_0" (8 or 4 bits, and a factor for each 32
            weights of an output). Norms, biases, and tables whose rows are no multiple of 32, stay in float32.
        context: the most tokens of a text. Default: 8192, or the width of the sliding window, if the model has one and
            the architecture does not: up to there they compute the same.

    Returns:
        Notes for the user.

    Raises:
        ExportError: if llama.cpp has no such model or tokenizer, which the message names; if a weight is not finite;
            if the gguf package is missing.
        OSError: if the file cannot be written.

    Example:
        >>> import tempfile
        >>> from heed.models import LanguageModel, LanguageModelConfig
        >>> options = {"normalization": "rms", "activation": "silu", "gated": True, "use_bias": False}
        >>> model = LanguageModel(LanguageModelConfig(vocabulary_size=40, width=32, **options))
        >>> write(model, f"{tempfile.mkdtemp()}/model.gguf")
        ['the file has no tokenizer: programs must give token ids']
    """
    _FORMAT.check_precision(precision)
    try:
        context = check_integer("context", context, least=1, optional=True)
    except ValueError as error:
        raise ExportOptionError(str(error)) from None
    package, data = _package(), _read_model(model)
    architecture = ARCHITECTURES[_find_architecture(data)]
    context, notes = _check_context(data, architecture, context)
    reasons = [*data.reasons, *_general_reasons(data.stack)] or [*_reasons(data, architecture)]
    if reasons:
        raise ExportError(f"{_NO_FORM} {', '.join(reasons)}")
    if data.tokenizer is None:
        notes.append("the file has no tokenizer: programs must give token ids")
    place = Path(file)
    temporary = temporary_path(place)
    try:
        writer = package.GGUFWriter(temporary, architecture.name)
        try:
            _describe(writer, data, architecture, context)
            _describe_tokens(writer, data)
            notes += _write_tensors(writer, [*_tensors(data, architecture)], precision)
        finally:
            writer.close()
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)
    return notes


def _package() -> Any:
    return _FORMAT.import_package("gguf")


def _is_of_hub(model: Any) -> bool:
    return isinstance(model, keras.Model) and hasattr(model, "backbone")


def _read_model(model: Any) -> LanguageModelData:
    """Return a model as data, or raise an error if heed does not know what it computes."""
    if _is_of_hub(model):
        return _read_hub_model(model)
    if not isinstance(model, LanguageModel):
        raise ExportError(
            "GGUF takes a heed.models.LanguageModel or a language model of KerasHub, no other model. "
            f"Received: {type(model).__name__}"
        )
    if not model.built:
        model.build()
    config, decoder = model.config, model.decoder
    reasons = [] if config.position == "rotary" else [f"position={config.position!r}"]
    if config.score_mod is not None:
        reasons.append(f"score_mod={config.score_mod!r}")
    rotations: list[Rotation] = []
    bases = [] if reasons else rotary_bases(decoder)
    if bases:
        table = keras.ops.convert_to_numpy(describe_positions(decoder, 2, 1, 2).rotation)
        pairs = zip(table.reshape(len(bases), *table.shape[-2:]), bases, strict=True)
        rotations = [Rotation.read(one, base) for one, base in pairs]
    stack = describe_decoder(decoder, "float32")
    return LanguageModelData(model.name, stack, tuple(rotations), None, tuple(reasons))


def _read_hub_model(model: Any) -> LanguageModelData:
    try:
        found = describe(model)
    except LeftToKerasError as error:
        raise ExportError(
            f"heed cannot tell what {type(model).__name__} computes: {error}"
        ) from None
    try:
        tokenizer = describe_tokenizer(model)
    except ValueError as error:
        raise ExportError(
            f"{_NO_FORM} {error}; without `preprocessor` the model goes without a tokenizer"
        ) from None
    reasons = [] if found.table is None else ["learned positions"]
    tables = [x.kernel for layer in found.stack.layers for _, x in _dense(layer)]
    for table in (found.stack.embedding, *tables):
        if is_dataclass(table) and not isinstance(table, Computed):  # integers with their factors
            raise ExportError(f"{_NO_FORM} weights that Keras quantised: export it before")
    if found.slopes is not None:
        reasons.append("ALiBi")
    rotations = []
    for one in found.rotations:
        table = one.table(CONTEXT)
        if not np.array_equal(table[:2], one.table(2)):
            reasons.append("frequencies of a rotation that depend on the length of the text")
        # Without a base, the file gets all frequencies.
        base = getattr(one.layer, "max_wavelength", None) or _WAVELENGTH
        rotations.append(Rotation.read(table, float(base)))
    return LanguageModelData(model.name, found.stack, tuple(rotations), tokenizer, tuple(reasons))


def _find_architecture(model: LanguageModelData) -> str:
    """Return the name of the architecture that is most like a model."""
    layer = model.stack.layers[0]
    normed = layer.self_attention.query_norm is not None
    if layer.activation == "gelu_tanh":
        return "gemma3" if normed else "gemma2" if layer.self_post_norm is not None else "gemma"
    if normed:
        return "qwen3"
    biases = {name for name, dense in _dense(layer) if dense.bias is not None}
    needs = bool(biases) or model.logit_bias is not None
    fits = biases <= {*ARCHITECTURES["qwen2"].biases}
    is_square = model.stack.heads * model.stack.head_dim == model.width
    return "qwen2" if needs and fits and is_square else "llama"


def _dense(layer: DecoderLayer) -> Iterator[tuple[str, Dense]]:
    for name in ("query", "key", "value", "output"):
        yield name, getattr(layer.self_attention, name)
    for name in ("hidden", "up", "back"):
        if getattr(layer, name) is not None:
            yield name, getattr(layer, name)


def _norms(layer: DecoderLayer) -> Iterator[Norm]:
    found = (layer.self_norm, layer.self_post_norm, layer.feed_forward_norm)
    yield from (x for x in (*found, layer.feed_forward_post_norm) if x is not None)
    yield from _head_norms(layer)


def _head_norms(layer: DecoderLayer) -> Iterator[Norm]:
    attention = layer.self_attention
    return (x for x in (attention.query_norm, attention.key_norm) if x is not None)


def _general_reasons(stack: DecoderStack) -> Iterator[str]:
    """Yield the options of a model that no architecture has."""
    if stack.head_dim != stack.value_dim:
        yield f"value_dim={stack.value_dim} beside heads of width {stack.head_dim}"
    if stack.final_norm is None or not all(layer.norm_first for layer in stack.layers):
        yield "norm_first=False"
    norms = [norm for layer in stack.layers for norm in _norms(layer)]
    if not all(norm.root_mean_square and norm.beta is None for norm in norms):
        yield "normalization='layer'"
    if any(layer.up is None for layer in stack.layers):
        yield "gated=False"
    if any(layer.self_attention.rotation is None for layer in stack.layers):
        yield "layers without positions"
    attentions = (layer.self_attention for layer in stack.layers)
    yield from dict.fromkeys(
        text for part in (stack, *stack.layers, *attentions) for text in _unknown_options(part)
    )


def _unknown_options(part: Any) -> Iterator[str]:
    """Yield the options of a part that this file does not know, unless they have their default."""
    for field in fields(part):
        value, default = getattr(part, field.name), field.default
        default = None if default is MISSING else default
        is_plain = isinstance(value, (int, float, str))
        if field.name in _FIELDS or (value == default if is_plain else value is default):
            continue
        yield f"{field.name}={value!r}" if is_plain else field.name


def _reasons(model: LanguageModelData, architecture: Architecture) -> Iterator[str]:
    """Yield what differs between a model and an architecture."""
    stack, name = model.stack, architecture.name
    if model.logit_bias is not None and not architecture.logit_bias:
        yield f"{name} with a bias of the logits, which tie_embeddings=False brings"
    if architecture.tied and not model.tied:
        yield f"{name} with its own table for the logits"
    if architecture.scales_embeddings and not _near(stack.embedding_scale, model.width**0.5):
        yield f"{name} with embeddings multiplied by {stack.embedding_scale:g}"
    if architecture.logit_soft_cap not in (None, stack.logit_soft_cap is not None):
        yield f"{name} with logit_soft_cap={stack.logit_soft_cap}"
    of_heads = {id(x) for y in stack.layers for x in _head_norms(y)}
    norms = [stack.final_norm, *(x for y in stack.layers for x in _norms(y))]
    if len(found := {x.epsilon for x in norms if x is not None and id(x) not in of_heads}) > 1:
        yield f"norms with different epsilons: {sorted(found)}"
    for layer in stack.layers:
        if reasons := [*_layer_reasons(layer, architecture)]:
            yield from reasons
            return
    yield from _score_reasons(model, architecture)


def _layer_reasons(layer: DecoderLayer, architecture: Architecture) -> Iterator[str]:
    name = architecture.name
    if layer.activation != architecture.activation:
        yield f"activation={layer.activation!r}"
    for part, norm in (("attention", "self_post_norm"), ("feed-forward", "feed_forward_post_norm")):
        if (getattr(layer, norm) is not None) != architecture.post_norms:
            yield f"{name} {'without' if architecture.post_norms else 'with'} norms after {part} parts"
    if len([*_head_norms(layer)]) != 2 * architecture.head_norms:
        yield f"{name} with qk_norm={not architecture.head_norms}"
    for part, dense in _dense(layer):
        if dense.bias is not None and part not in architecture.biases:
            yield f"{name} with a bias of {part}"


def _score_reasons(model: LanguageModelData, architecture: Architecture) -> Iterator[str]:
    """Yield what differs in the scores of attention: soft-caps, windows and rotations by layer."""
    attentions, name = [layer.self_attention for layer in model.stack.layers], architecture.name
    caps = {one.soft_cap for one in attentions}
    if len(caps) > 1 or (caps != {None}) != architecture.soft_cap:
        yield f"{name} with soft_cap={' and '.join(map(str, caps))}"
    rotations: dict[bool, set[int | None]] = {True: set(), False: set()}
    has_windows = any(one.sliding_window is not None for one in attentions)
    for number, one in enumerate(attentions):
        within = architecture.has_window(number)
        rotations[within and has_windows].add(one.rotation)
        own = one.sliding_window is not None
        if architecture.windows is not None and has_windows and within != own:
            yield f"{name} with sliding_window={one.sliding_window} in layer {number}"
            return
    if len({one.sliding_window for one in attentions} - {None}) > 1:
        yield "sliding windows of different widths"
    if any(len(numbers) > 1 for numbers in rotations.values()):
        yield f"{name} with these rotations by layer"
        return
    near, far = (
        next((model.rotations[number] for number in rotations[side] if number is not None), None)
        for side in (True, False)
    )
    if far is not None and far.factor() is None and not architecture.sets_frequencies:
        yield f"{name} with scaled frequencies of its rotation"
    if name == "gemma2" and near is not None and far is not None and near is not far:
        yield f"{name} with several rotations"
    if near is not None and name == "gemma3" and (near.factor() != 1 or near.base != _WAVELENGTH):
        yield f"{name} with another rotation than of wavelength {_WAVELENGTH:g} in windows"


def _near(x: float, y: float) -> bool:
    return math.isclose(x, y, rel_tol=1e-6)  # one was rounded to float32


def _check_context(
    model: LanguageModelData, architecture: Architecture, context: int | None
) -> tuple[int, list[str]]:
    """Return the most tokens of a text, and notes: a window that the architecture lacks bounds it."""
    windows = [x.self_attention.sliding_window for x in model.stack.layers]
    bound = min((x for x in windows if x is not None), default=None)
    if architecture.windows is not None or bound is None:
        return context or CONTEXT, []
    if context is not None and context > bound:
        raise ExportError(
            f"`context` must be at most {bound}, the model's sliding window, as {architecture.name} of llama.cpp has "
            f"none. Received: context={context}"
        )
    note = (
        f"{architecture.name} of llama.cpp has no sliding window: texts have at most {bound} tokens"
    )
    return context or min(CONTEXT, bound), [note]


def _describe(
    writer: Any, model: LanguageModelData, architecture: Architecture, context: int
) -> None:
    stack, attentions = model.stack, [layer.self_attention for layer in model.stack.layers]
    writer.add_type("model")
    writer.add_name(model.name)
    writer.add_vocab_size(model.vocabulary)
    writer.add_context_length(context)
    writer.add_embedding_length(model.width)
    writer.add_block_count(len(stack.layers))
    writer.add_feed_forward_length(model.feed_forward)
    writer.add_head_count(stack.heads)
    writer.add_head_count_kv(stack.kv_heads)
    writer.add_key_length(stack.head_dim)
    writer.add_value_length(stack.value_dim)
    writer.add_layer_norm_rms_eps(stack.layers[0].self_norm.epsilon)
    writer.add_rope_dimension_count(stack.head_dim)
    rotation = _main_rotation(model, architecture)
    writer.add_rope_freq_base(rotation.base)
    if (factor := rotation.factor()) not in (None, 1):
        writer.add_rope_scaling_type(_package().RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(factor)
    window = next((x.sliding_window for x in attentions if x.sliding_window is not None), None)
    if architecture.windows is not None and (window is not None or architecture.needs_windows):
        writer.add_sliding_window(context if window is None else window)
    if architecture.soft_cap:
        writer.add_attn_logit_softcapping(attentions[0].soft_cap)
    if stack.logit_soft_cap is not None:
        writer.add_final_logit_softcapping(stack.logit_soft_cap)


def _main_rotation(model: LanguageModelData, architecture: Architecture) -> Rotation:
    """Return the rotation of layers without a window, or of all if each has one."""
    attentions = [layer.self_attention for layer in model.stack.layers]
    whole = [x for x in attentions if x.sliding_window is None or architecture.windows is None]
    return model.rotations[(whole or attentions)[0].rotation or 0]


def _describe_tokens(writer: Any, model: LanguageModelData) -> None:
    tokenizer, count = model.tokenizer, model.vocabulary
    if tokenizer is None:
        writer.add_tokenizer_model("none")
        return
    missing = count - len(tokenizer.tokens)
    if missing < 0:
        raise ExportError(
            f"the tokenizer must have at most {count} tokens, the vocabulary of the model. "
            f"Received: {len(tokenizer.tokens)}"
        )
    names = [f"[UNUSED{i}]" for i in range(len(tokenizer.tokens), count)]
    writer.add_tokenizer_model("gpt2" if tokenizer.scores is None else "llama")
    if tokenizer.scores is None:
        # KerasHub splits text by Llama 3's rule, and joins pairs alone, also where a word is a token. So does DBRX.
        writer.add_tokenizer_pre("dbrx")
        writer.add_token_merges(tokenizer.merges)
    else:
        writer.add_tokenizer_pre("default")
        writer.add_token_scores([*tokenizer.scores, *[-1000.0] * missing])
        writer.add_add_space_prefix(tokenizer.space_first)
    writer.add_token_list([*tokenizer.tokens, *names])
    writer.add_token_types([*tokenizer.kinds, *[UNUSED] * missing])
    writer.add_add_bos_token(tokenizer.adds_start)
    writer.add_add_eos_token(False)
    if tokenizer.start is not None:
        writer.add_bos_token_id(tokenizer.start)
    if tokenizer.padding is not None:
        writer.add_pad_token_id(tokenizer.padding)
    for name, number in zip(("eos", "eot"), tokenizer.ends, strict=False):
        getattr(writer, f"add_{name}_token_id")(number)


class _Tensor(NamedTuple):
    """A tensor of the file, and a function that reads it."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], _Array]


def _tensors(model: LanguageModelData, architecture: Architecture) -> Iterator[_Tensor]:
    """Yield the tensors, tables as (outputs, inputs)."""
    stack: Any = model.stack
    scale = 1.0 if architecture.scales_embeddings else stack.embedding_scale
    shape = (model.vocabulary, model.width)
    yield _Tensor("token_embd.weight", shape, lambda: _array(stack.embedding) * np.float32(scale))
    if not model.tied or scale != 1:
        yield _Tensor("output.weight", shape, lambda: _table(stack.logits, shape))
    if (bias := model.logit_bias) is not None:
        yield _Tensor("output.bias", shape[:1], lambda: bias)
    yield _norm(model, "output_norm", stack.final_norm)
    rotation = _main_rotation(model, architecture)
    if rotation.factor() is None:
        factors = rotation.factors().astype(np.float32)
        yield _Tensor("rope_freqs.weight", factors.shape, lambda: factors)
    for number, layer in enumerate(stack.layers):
        for tensor in _layer_tensors(layer, model, architecture):
            yield tensor._replace(name=f"blk.{number}.{tensor.name}")


def _layer_tensors(
    layer: DecoderLayer, model: LanguageModelData, architecture: Architecture
) -> Iterator[_Tensor]:
    stack, attention = model.stack, layer.self_attention
    ratio = (attention.scale or 1 / math.sqrt(stack.head_dim)) / architecture.scale(model)
    ratio = 1.0 if _near(ratio, 1) else ratio  # it multiplies queries
    factors = {"query": 1.0 if attention.query_norm is not None else ratio}
    for name, head_norm in (("query", attention.query_norm), ("key", attention.key_norm)):
        # A file has one epsilon: x / sqrt(mean(x^2) + e) is c x / sqrt(mean((c x)^2) + c^2 e).
        if head_norm is not None and head_norm.epsilon != layer.self_norm.epsilon:
            factors[name] = math.sqrt(layer.self_norm.epsilon / head_norm.epsilon)
    norms = {
        "attn_norm": layer.self_norm,
        "post_attention_norm": layer.self_post_norm,
        "attn_q_norm": attention.query_norm,
        "attn_k_norm": attention.key_norm,
        "ffn_norm": layer.feed_forward_norm,
        "post_ffw_norm": layer.feed_forward_post_norm,
    }
    for name, norm in norms.items():
        if norm is not None:
            yield _norm(model, name, norm, ratio if name == "attn_q_norm" else 1.0)
    widths = {"query": stack.heads, "key": stack.kv_heads, "value": stack.kv_heads}
    for name, dense in _dense(layer):
        rows = {"hidden": model.feed_forward, "up": model.feed_forward}.get(name, model.width)
        columns = {"output": stack.heads * stack.head_dim, "back": model.feed_forward}
        heads = 1
        if name in widths:
            rows = widths[name] * stack.head_dim
            heads = widths[name] if architecture.neighbours and name != "value" else 1
        shape = (rows, columns.get(name, model.width))
        if dense.bias is None and name in architecture.biases and not architecture.may_lack_biases:
            dense = replace(dense, bias=np.zeros(shape[0], np.float32))
        yield from _dense_tensors(_NAMES[name], dense, shape, heads, factors.get(name, 1.0))


def _norm(model: LanguageModelData, name: str, norm: Norm, factor: float = 1.0) -> _Tensor:
    width = model.stack.head_dim if name in ("attn_q_norm", "attn_k_norm") else model.width
    return _Tensor(
        f"{name}.weight", (width,), lambda: _array(norm.gamma).reshape(width) * np.float32(factor)
    )


def _dense_tensors(
    name: str, dense: Dense, shape: tuple[int, int], heads: int, factor: float
) -> Iterator[_Tensor]:
    """Yield the tensors of a dense layer, with outputs multiplied by `factor`.

    If `heads` is not 1, they are heads whose features are rotated with their neighbours.
    """

    def order(array: _Array) -> _Array:
        if heads > 1:
            halves = array.reshape(heads, 2, shape[0] // heads // 2, -1)
            array = halves.swapaxes(1, 2).reshape(array.shape)
        return array * np.float32(factor)

    yield _Tensor(f"{name}.weight", shape, lambda: order(_table(dense, shape)))
    if dense.bias is not None:
        yield _Tensor(
            f"{name}.bias", shape[:1], lambda: order(_array(dense.bias).reshape(shape[0]))
        )


def _table(dense: Dense, shape: tuple[int, int]) -> _Array:
    """Return the kernel as (outputs, inputs)."""
    kernel = _array(dense.kernel)
    return kernel.reshape(shape) if dense.transposed else kernel.reshape(shape[::-1]).T


def _array(weight: Any) -> _Array:
    return np.asarray(resolve(weight, keras.ops.convert_to_numpy), np.float32)


def _write_tensors(writer: Any, tensors: list[_Tensor], precision: str) -> list[str]:
    """Write the tensors one after the other, each read when its turn comes; return notes."""
    package = _package()
    types, quants = package.GGMLQuantizationType, package.quants
    kind = getattr(types, _TYPES[precision])
    block, _ = package.GGML_QUANT_SIZES[kind]
    share = "ALL" if precision == "float32" else "MOSTLY"
    writer.add_file_type(getattr(package.LlamaFileType, f"{share}_{_TYPES[precision]}"))
    if block > 1:
        writer.add_quantization_version(package.GGML_QUANT_VERSION)
    kinds = [
        (one, kind if len(one.shape) > 1 and one.shape[-1] % block == 0 else types.F32)
        for one in tensors
    ]
    for one, stored in kinds:
        size = quants.quant_shape_to_byte_shape(one.shape, stored)
        dtype, count = np.dtype(np.uint8), math.prod(size)
        writer.add_tensor_info(one.name, size, dtype, count, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for one, stored in kinds:
        array = np.ascontiguousarray(one.read())
        if not np.isfinite(array).all():
            raise ExportError(f"{one.name} of the file would hold numbers that are not finite")
        writer.write_tensor_data(quants.quantize(array, stored))
    whole = [one.name for one, stored in kinds if len(one.shape) > 1 and stored != kind]
    if not whole:
        return []
    return [
        f"{len(whole)} tables whose rows are no multiple of {block} stay in float32: {whole[0]}"
    ]
