"""Models of KerasHub to start a run from: BART and T5, with their tokenizers.

The weights of a preset become those of a `Transformer`, which computes the same. Tokens get heed's ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.errors import TaskError, UsageError, convert_value_errors
from heed.install import how_to_install
from heed.models import Transformer, TransformerConfig
from heed.seq2seq.runs.trained_model import build_model
from heed.seq2seq.tasks.task import Task
from heed.seq2seq.tokens.byte_pairs import BytePairTokenizer, pack
from heed.seq2seq.tokens.tokenizer import END_ID, PAD_ID, RESERVED, START_ID, Tokenizer

_Array = NDArray[np.float32]
_Pairs = Iterator[tuple[Any, Any]]  # variables of heed's model, with their values


class HubPreset:
    """A preset of KerasHub: a folder that `save_to_preset` wrote, or a name that `from_preset` takes. See `Origin`.

    A TaskError says that there is none, that a run cannot start from its model, or that KerasHub is missing.
    """

    architecture: str = "transformer"

    def __init__(self, name: str) -> None:
        self.path: Any = f"hub:{name}"
        if not name:
            raise UsageError("`hub:` must be followed by the folder or the name of a preset")
        hub = _import_keras_hub()
        self._backbone = _load(self.path, hub.models.Backbone, name, dtype="float32")
        kind = type(self._backbone).__name__
        if kind not in _CONVERSIONS:
            raise TaskError(
                f"{self.path} must have one of {', '.join(_CONVERSIONS)} to start a run from. Received: {kind}"
            )
        self._conversion = _CONVERSIONS[kind]
        theirs = _load(f"the tokenizer of {self.path}", hub.tokenizers.Tokenizer, name)
        self._tokenizer = self._conversion.tokenizer(theirs)
        self._start = self._conversion.start(theirs)
        size = self._tokenizer.vocabulary_size
        special = {"pad_id": PAD_ID, "start_id": START_ID, "end_id": END_ID}
        with convert_value_errors():
            values = {**special, **self._conversion.values(self._backbone)}
            self._config = TransformerConfig(size, size, **values)
        self.values: Mapping[str, Any] = self._config.to_dict()

    def same_vocabulary(self, kind: type[Task], chosen: Collection[str] = ()) -> dict[str, Any]:
        of_vocabulary = {"vocabulary", "vocabulary_size", "unit"}
        names = ("source_tokenizer", "target_tokenizer")
        if not {*names} <= {option.name for option in kind.options}:
            raise UsageError(
                f"{self.path} has a model of text: it is for own text, not for {kind.title}"
            )
        if (of_vocabulary | {*names}) & set(chosen):
            return {}
        return dict.fromkeys(names, self._tokenizer)

    def list_tokens(self) -> dict[str, list[str]]:
        tokens = self._tokenizer.pieces(range(RESERVED, self._tokenizer.vocabulary_size))
        return {"source": tokens, "target": tokens}

    def load_weights(self) -> tuple[list[_Array], int]:
        """Return the weights of heed's model with the vocabulary of the preset, and 0 steps."""
        model = self.make_model()
        return [variable.numpy() for variable in model.weights], 0

    def make_model(self) -> Transformer:
        """Return heed's model with the weights and the vocabulary of the preset."""
        model = build_model(self.architecture, self._config, seed=0)
        for variable, value in self._conversion.weights(self, self._backbone, model):
            array = np.asarray(value, np.float32)
            variable.assign(array.reshape(variable.shape))
        return model

    def select_tokens(self, table: Any) -> _Array:
        """Return rows of a table by heed's token ids: an unknown token that the preset lacks gets their mean."""
        table = np.asarray(table, np.float32)
        rows = [self._tokenizer.library_id(i) for i in range(self._tokenizer.vocabulary_size)]
        rows[START_ID] = self._start
        mean = table.mean(axis=0)
        return np.stack([mean if row is None else table[row] for row in rows])


class _Conversion(NamedTuple):
    """What makes heed's parts of those of a class of models."""

    tokenizer: Callable[[Any], Tokenizer]
    start: Callable[[Any], int]  # the id with which a decoder starts
    values: Callable[[Any], dict[str, Any]]  # of heed's config
    weights: Callable[[HubPreset, Any, Transformer], _Pairs]


def _of_t5(backbone: Any) -> dict[str, Any]:
    heads = backbone.num_heads
    return {
        **_sizes(backbone),
        "key_dim": backbone.key_value_dim or backbone.hidden_dim // heads,
        "activation": _name_activation(backbone),
        "gated": backbone.use_gated_activation,
        "normalization": "rms",
        "norm_epsilon": backbone.layer_norm_epsilon,
        "use_bias": False,
        "position": "relative",
        "tie_embeddings": backbone.tie_embedding_weights,
    }


def _weights_of_t5(preset: HubPreset, backbone: Any, model: Transformer) -> _Pairs:
    # heed multiplies embeddings by the root of the width; T5 divides the logits by it where they share the table.
    root = model.config.width**0.5
    embedding = backbone.token_embedding
    yield (
        model.encoder.embedding.tokens.embeddings,
        preset.select_tokens(embedding.embeddings) / root,
    )
    if model.decoder.output_layer is not None:
        table = np.transpose(embedding.reverse_embeddings)
        yield model.decoder.output_layer.kernel, preset.select_tokens(table).T
    for side in ("encoder", "decoder"):
        stack, theirs = getattr(model, side), getattr(backbone, f"{side}_transformer_layers")
        yield stack.embedding.bias.embeddings, theirs[0].self_attention.relative_attention_bias
        yield stack.final_norm.scale, getattr(backbone, f"{side}_layer_norm").weight
        for ours, layer in zip(stack.blocks, theirs, strict=True):
            attentions = [(_self_attention(ours), layer.self_attention)]
            norms = [(_self_attention_norm(ours), layer.self_attention_layer_norm)]
            if side == "decoder":
                attentions.append((ours.encoded_attention, layer.cross_attention))
                norms.append((ours.encoded_attention_norm, layer.cross_attention_layer_norm))
            norms.append((ours.feed_forward_norm, layer.layer_norm))
            for norm, other in norms:
                yield norm.scale, other.weight
            for attention, other in attentions:
                # T5 does not scale its scores.
                scale = attention.key_dim**0.5
                yield attention.query_dense.kernel, np.asarray(other.query_projector.kernel) * scale
                yield attention.key_dense.kernel, other.key_projector.kernel
                yield attention.value_dense.kernel, other.value_projector.kernel
                yield attention.output_dense.kernel, other.output_projector.kernel
            part = ours.feed_forward
            yield part.hidden_dense.kernel, layer.input_projector.kernel
            if part.up_dense is not None:
                yield part.up_dense.kernel, layer.gate_projector.kernel
            yield part.output_dense.kernel, layer.output_projector.kernel


def _of_bart(backbone: Any) -> dict[str, Any]:
    return {
        **_sizes(backbone),
        "activation": "gelu",
        "norm_first": False,
        "norm_epsilon": 1e-5,
        "position": "learned",
        "max_length": backbone.max_sequence_length,
        "scale_embeddings": False,
        "normalize_embeddings": True,
    }


def _weights_of_bart(preset: HubPreset, backbone: Any, model: Transformer) -> _Pairs:
    table = preset.select_tokens(backbone.token_embedding.embeddings)
    yield model.encoder.embedding.tokens.embeddings, table
    for side in ("encoder", "decoder"):
        stack, embedding = getattr(model, side), getattr(model, side).embedding
        positions = getattr(backbone, f"{side}_position_embedding")
        yield embedding.positions.embeddings, positions.position_embeddings
        yield from _norm(embedding.norm, getattr(backbone, f"{side}_embeddings_layer_norm"))
        layers = getattr(backbone, f"{side}_transformer_layers")
        for ours, layer in zip(stack.blocks, layers, strict=True):
            yield from _layer_of_bart(ours, {_path_in(layer, x): x for x in layer.weights})


def _layer_of_bart(ours: Any, theirs: Mapping[str, Any]) -> _Pairs:
    """Yield the weights of a layer, by their paths in it."""
    name = "self_attention" if hasattr(ours, "self_attention") else "self_attention_layer"
    attentions = [(_self_attention(ours), name)]
    norms = [(_self_attention_norm(ours), "self_attention_layer_norm")]
    if hasattr(ours, "encoded_attention"):
        attentions.append((ours.encoded_attention, "cross_attention"))
        norms.append((ours.encoded_attention_norm, "cross_attention_layer_norm"))
    norms.append((ours.feed_forward_norm, "feedforward_layer_norm"))
    for norm, name in norms:
        yield norm.gamma, theirs[f"{name}/gamma"]
        yield norm.beta, theirs[f"{name}/beta"]
    dense = [
        (
            getattr(attention, f"{part}_dense"),
            f"{name}/{'attention_output' if part == 'output' else part}",
        )
        for attention, name in attentions
        for part in ("query", "key", "value", "output")
    ]
    dense += [
        (ours.feed_forward.hidden_dense, "feedforward_intermediate_dense"),
        (ours.feed_forward.output_dense, "feedforward_output_dense"),
    ]
    for layer, name in dense:
        yield layer.kernel, theirs[f"{name}/kernel"]
        yield layer.bias, theirs[f"{name}/bias"]


def _sizes(backbone: Any) -> dict[str, Any]:
    return {
        "width": backbone.hidden_dim,
        "num_heads": backbone.num_heads,
        "encoder_layers": backbone.num_layers,
        "decoder_layers": backbone.num_layers,
        "feed_forward_width": backbone.intermediate_dim,
        "dropout": backbone.dropout,
        "attention_dropout": backbone.dropout,
        "share_embeddings": True,
    }


def _name_activation(backbone: Any) -> str:
    """Return the name of Keras' activation; heed's config takes no other."""
    import keras

    name = backbone.get_config()["activation"]
    if not isinstance(name, str):
        name = getattr(backbone.activation, "__name__", "")
    if getattr(keras.activations, name, None) is not backbone.activation:
        raise TaskError(
            f"the activation must be one of Keras to start a run from it. Received: activation={name!r}"
        )
    return name


def _self_attention(block: Any) -> Any:
    return block.self_attention if hasattr(block, "self_attention") else block.attention


def _self_attention_norm(block: Any) -> Any:
    return block.self_attention_norm if hasattr(block, "self_attention") else block.attention_norm


def _norm(ours: Any, theirs: Any) -> _Pairs:
    yield ours.gamma, theirs.gamma
    yield ours.beta, theirs.beta


def _path_in(layer: Any, weight: Any) -> str:
    return str(weight.path.rpartition(f"{layer.name}/")[2])


def _sentencepiece_of(tokenizer: Any) -> Tokenizer:
    return Tokenizer(tokenizer.proto)


def _byte_pairs_of(tokenizer: Any) -> BytePairTokenizer:
    special = {
        "begin": tokenizer.start_token,
        "pad": tokenizer.pad_token,
        "end": tokenizer.end_token,
        "unknown": "<unk>",
    }
    merges = [merge for merge in map(str, tokenizer.merges) if not merge.startswith("#version:")]
    return BytePairTokenizer(pack(dict(tokenizer.vocabulary), merges, special))


_CONVERSIONS = {
    # BART's decoder starts with the end token and writes "<s>" first.
    "BartBackbone": _Conversion(
        _byte_pairs_of, lambda tokenizer: tokenizer.end_token_id, _of_bart, _weights_of_bart
    ),
    "T5Backbone": _Conversion(
        _sentencepiece_of, lambda tokenizer: tokenizer.pad_token_id, _of_t5, _weights_of_t5
    ),
}


def _import_keras_hub() -> Any:
    try:
        import keras_hub
    except ImportError:
        raise TaskError(f"this needs the keras-hub library: {how_to_install('hub')}") from None
    return keras_hub


def _load(what: str, kind: Any, name: str, **options: Any) -> Any:
    """Load a part of a preset; a TaskError says why it cannot be."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of KerasHub about its own layers and files
            return kind.from_preset(name, **options)
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].strip()
        if reason.startswith("Unknown preset"):
            reason = "it is neither a folder that `save_to_preset` wrote nor a preset of KerasHub"
        raise TaskError(f"{what} cannot be opened: {reason}") from None
