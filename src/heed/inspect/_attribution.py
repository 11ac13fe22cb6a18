"""Attribution: how much weights, heads, layers and positions add to a number of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from heed.inspect import _names
from heed.inspect._blocks import find_projection
from heed.inspect._observed import FusedAttention, ObservedAttention
from heed.inspect._residual import to_floats
from heed.inspect._row_statistics import Floats, each_head
from heed.inspect._run import ModelCall, check_function, run_observed
from heed.inspect._stack import Block, Seen, run_stack
from heed.inspect._watch import Place, Session, watch
from heed.number_checks import check_integer
from heed.ops.backends import current

# How much a rounding is off, of the number.
_ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# A block rounds at most three sums, and its input; a normalisation its output twice, and so the probe.
_ROUNDINGS = 4


def contrast(
    token: int | Sequence[int], against: int | Sequence[int] | None = None, *, position: int = -1
) -> Callable[[Any], Any]:
    """Return a target: the logit of a token, or its difference from that of another one.

    Args:
        token: the token, or one for each entry of the batch.
        against: the other token, in the same way. Default: none.
        position: of the outputs (B, T, V), negative from the end; of (B, V) it is not used.

    Returns:
        A function of the outputs that returns the sum over the batch, a scalar tensor: a `target` of attributions and a
        `metric` of interventions.

    Raises:
        TypeError: if a token or the position is no integer.
        ValueError: when it is called, if a token or the position does not exist.

    >>> import numpy as np
    >>> logits = np.array([[[1.0, 2.0], [3.0, 5.0]]])
    >>> float(contrast(1)(logits)), float(contrast(1, against=0)(logits))
    (5.0, 2.0)
    """
    signs = [(1.0, "token", _to_tokens("token", token))]
    if against is not None:
        signs.append((-1.0, "against", _to_tokens("against", against)))
    position = _names.to_integer("position", position)

    def target(outputs: Any) -> Any:
        shape = tuple(getattr(outputs, "shape", ()))
        if len(shape) not in (2, 3):
            raise ValueError(
                f"`outputs` must be logits (B, T, V) or (B, V). Received: {type(outputs).__name__} of shape {shape}"
            )
        if len(shape) == 3 and not -shape[1] <= position < shape[1]:
            raise ValueError(
                f"`position` must be in [{-shape[1]}, {shape[1]}). Received: position={position}"
            )
        logits = outputs[:, position] if len(shape) == 3 else outputs
        chosen = np.zeros((shape[0], shape[-1]), "float32")
        for sign, option, tokens in signs:
            wrong = any(not 0 <= one < shape[-1] for one in tokens)
            if wrong or len(tokens) not in (1, shape[0]):
                raise ValueError(
                    f"`{option}` must be in [0, {shape[-1]}), one, or one for each of {shape[0]}. "
                    f"Received: {tokens}"
                )
            chosen[np.arange(shape[0]), list(tokens)] += sign
        return ops.sum(ops.multiply(logits, ops.cast(chosen, logits.dtype)))

    return target


def _to_tokens(option: str, given: Any) -> tuple[int, ...]:
    several = isinstance(given, (list, tuple)) or np.ndim(given) > 0
    return tuple(_names.to_integer(option, i) for i in (given if several else [given]))


@dataclass(frozen=True)
class LogitAttribution:
    """The result of `attribute_logits`: terms that sum to the target.

    Attributes:
        total: the target.
        terms: what each place of the residual stream adds to it by position, (B, T) float64 by name: the input of the
            first block, and what the parts of all blocks add.
        heads: the same of each head, (B, N, T) by the name of the attention; with the bias of the projection they sum
            to the term of the attention.
        constant: what the offsets of normalisations and of the head add, the same for all inputs.
        rest: total - the sum of all terms - constant: 0 up to rounding, unless the head is not linear, such as one with
            a soft cap or several layers.
    """

    total: float
    terms: Mapping[str, Floats]
    heads: Mapping[str, Floats]
    constant: float
    rest: float

    @property
    def by_layer(self) -> dict[str, float]:
        """The terms, summed over batch and positions."""
        return {name: float(x.sum()) for name, x in self.terms.items()}

    @property
    def by_head(self) -> dict[str, Floats]:
        """The terms of the heads, summed over batch and positions, (N,) by name."""
        return {name: x.sum((0, 2)) for name, x in self.heads.items()}

    @property
    def ranking(self) -> list[tuple[str, int, float]]:
        """All heads with their terms, the largest first."""
        return sorted(each_head(self.by_head), key=lambda x: -x[2])

    def __repr__(self) -> str:
        lines = [f"  {x:+.4g}  {name}" for name, x in self.by_layer.items()]
        lines.append(f"  {self.constant:+.4g}  constant")
        return "\n".join([f"<LogitAttribution of {self.total:.4g}", *lines]) + ">"


def attribute_logits(
    model: Any,
    inputs: Any,
    target: Callable[[Any], Any],
    *,
    call_arguments: Mapping[str, Any] | None = None,
) -> LogitAttribution:
    """Split a logit, or a difference of two, into what each layer, head and position adds directly to it.

    The residual stream is a sum, and a normalisation whose statistics are held is linear. So the target is the sum of
    g . x over all vectors x that were added to the stream, with g the gradient of the target, led back through the
    normalisations of the stream (the final one; in a post-norm model those after each part). Effects through later
    layers are not counted: `patching_effects` measures these.

    Args:
        model: as for `logit_lens`; of an encoder-decoder model, the decoder's layers are counted.
        inputs, call_arguments: as for `capture`.
        target: takes the model's outputs and returns a scalar tensor, such as `contrast(token, against=other)`.

    Returns:
        A `LogitAttribution`.

    Raises:
        ValueError: if the target is not a scalar tensor, if the model has no blocks that heed knows, or if a block adds
            up to something else than its parts.
        TypeError, RuntimeError: as `capture`.

    Numerics: sums are float64 over what the model computed.

    Source: Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021; Wang et al., "Interpretability in
        the Wild", 2022, section 3.1.

    >>> import numpy as np
    >>> from heed import models
    >>> config = models.LanguageModelConfig(vocabulary_size=20, layers=2, num_heads=2, width=8, feed_forward_width=16)
    >>> model, tokens = models.LanguageModel(config), np.array([[3, 7, 7, 5]])
    >>> found = attribute_logits(model, tokens, contrast(7, against=3))
    >>> total = sum(found.by_layer.values()) + found.constant
    >>> logits = model(tokens)[0, -1]
    >>> bool(np.isclose(total, logits[7] - logits[3], atol=1e-5)), list(found.by_head)
    (True, ['layer_0/self_attention', 'layer_1/self_attention'])
    """
    check_function("target", target)
    stack = run_stack(ModelCall(model, inputs, call_arguments))
    total = float(_to_float64(_scalar(target(stack.outputs))))
    (gradient,) = current().gradients(
        lambda mark: _scalar(target(stack.run_head(stack.final.place.name, mark(stack.final.x))))
    )
    g: Floats = _to_float64(gradient)
    with current().without_gradients():
        zero = stack.run_head(stack.final.place.name, ops.zeros_like(stack.final.x))
        constant = float(_to_float64(_scalar(target(zero))))
    if stack.final_norm is not None:
        norm = _HeldNorm(*stack.final_norm)
        constant += norm.constant(g)
        g = norm.lead_back(g)
    terms: dict[str, Floats] = {}
    heads: dict[str, Floats] = {}
    for block in reversed(stack.blocks):
        of_parts, g, added = _lead_through(block, g)
        constant += added
        for part, own in zip(reversed(block.parts), reversed(of_parts), strict=True):
            terms[part.place.name] = _dot(own, part.x)
            own = _lead_through_output_norm(block, part, own)
            for one in block.heads.get(part.place.name, ()):
                if (projection := find_projection(one.place.layer)) is not None:
                    projected = _project_heads(projection, one.place, one.x)
                    heads[one.place.owner] = np.stack([_dot(own, x) for x in projected], axis=1)
    first = stack.blocks[0]
    terms[f"{first.name}/input"] = _dot(g, first.input)
    rest = total - constant - sum(float(x.sum()) for x in terms.values())
    return LogitAttribution(total, _shorten(terms), _shorten(heads), constant, rest)


def _shorten(found: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return them in running order, by short names."""
    names = [*found][::-1]
    short = _names.shorten_names(names) if names else []
    return {name: found[full] for name, full in zip(short, names, strict=True)}


def _scalar(value: Any) -> Any:
    shape = tuple(getattr(value, "shape", (0,)))
    if shape != ():
        received = f"a tensor of shape {shape}" if hasattr(value, "shape") else repr(value)
        raise ValueError(f"`target` must return a scalar tensor. Received: {received}")
    return value


def _to_float64(x: Any) -> NDArray[np.float64]:
    return to_floats(x).astype(np.float64)


def _dot(g: Floats, x: Any) -> Floats:
    """Map (B, T, D) and (B, T, D) to (B, T)."""
    return np.einsum("btd,btd->bt", g, _to_float64(x))


class _HeldNorm:
    """A normalisation over the features, with the statistics of a run held: y = offset + scale s_bt (x - mean(x)).

    The layer says by three vectors what it computes, so that it may be anybody's.
    """

    def __init__(self, before: Seen, after: Seen) -> None:
        layer, x, y = before.place.layer, _to_float64(before.x), _to_float64(after.x)
        D = x.shape[-1]
        # A vector without zeros whose mean is 0.
        probe = np.resize([1.0, -1.0], D)
        if D % 2:
            probe[-3:] = (2.0, -1.0, -1.0)
        probe[:] = probe if D > 1 else 1.0

        def run(vector: Floats) -> Floats:
            shaped = ops.cast(vector.reshape(1, 1, D), before.x.dtype)
            return _to_float64(layer(shaped)).reshape(D)

        with current().without_gradients():
            self._offset = run(np.zeros(D))
            self._scale = (run(probe) - self._offset) / probe
            moved = np.abs(run(probe + 1.0) - run(probe)).max()
        # A norm without a mean moves by some tenths of its scale; one with a mean by its rounding only.
        self._centred = bool(moved <= 0.1 * np.abs(self._scale).max())
        linear = self._scale * self._centre(x)
        size = np.einsum("btd,btd->bt", linear, linear)
        self._factor = np.einsum("btd,btd->bt", y - self._offset, linear)
        self._factor = (self._factor / np.where(size > 0, size, 1.0))[..., None]
        error = _largest(self._offset + self._factor * linear - y)
        sizes = _largest(y) + (_largest(self._offset) + _largest(self._scale)) * _largest(
            self._factor * self._centre(x)
        )
        # The mean is a sum of D terms, in float32 at least, and is subtracted from x.
        fine = min(_rounding(before.x), _ROUNDING["float32"])
        mean = D * fine * _largest(x) * _largest(self._factor * self._scale)
        if error > _ROUNDINGS * _rounding(before.x, after.x) * sizes + mean:
            raise ValueError(
                "Normalisations of the stream must be over its features, as LayerNormalization and RMSNormalization. "
                f"Received: {layer.name!r} ({type(layer).__name__})"
            )

    def _centre(self, x: Floats) -> Floats:
        return x - x.mean(-1, keepdims=True) if self._centred else x

    def lead_back(self, g: Floats) -> Floats:
        """Return the gradient of the input from that of the output."""
        return self._centre(self._factor * self._scale * g)

    def constant(self, g: Floats) -> float:
        """Return what the offset adds."""
        return float((g * self._offset).sum())


def _lead_through(block: Block, g: Floats) -> tuple[list[Floats], Floats, float]:
    """Return the gradients of a block's parts and of its input from that of its output, and what offsets add."""
    parts = [part.x for part in block.parts]
    if _is_sum(block.output, [block.input, *parts]):
        return [g] * len(parts), g, 0.0
    x, norms = block.input, []
    for part in parts:  # post-norm: each sum is normalised
        pair = next((pair for pair in block.norms if _is_sum(pair[0].x, [x, part])), None)
        if pair is None:
            break
        norms.append(pair)
        x = pair[1].x
    if len(norms) < len(parts) or not _is_sum(block.output, [x]):
        raise ValueError(
            "Blocks must add their parts to the stream, and may normalise each sum. "
            f"Received: {block.name!r}, which computes something else of {[p.place.part for p in block.parts]}"
        )
    of_parts: list[Floats] = []
    constant = 0.0
    for pair in reversed(norms):
        norm = _HeldNorm(*pair)
        constant += norm.constant(g)
        g = norm.lead_back(g)
        of_parts.insert(0, g)
    return of_parts, g, constant


def _lead_through_output_norm(block: Block, part: Seen, g: Floats) -> Floats:
    """Return the gradient of what an attention returns, where the block normalises that before it adds it."""
    pair = next((pair for pair in block.norms if pair[1].x is part.x), None)
    return g if pair is None else _HeldNorm(*pair).lead_back(g)


def _is_sum(found: Any, terms: Sequence[Any]) -> bool:
    """Return whether a tensor is the sum of others, up to rounding."""
    if any(tuple(x.shape) != tuple(found.shape) for x in terms):
        return False
    wide = [_to_float64(x) for x in terms]
    error = _largest(_to_float64(found) - np.sum(wide, axis=0))
    return error <= _ROUNDINGS * _rounding(found, *terms) * _largest(np.sum(np.abs(wide), axis=0))


def _rounding(*tensors: Any) -> float:
    """Return the coarsest rounding of some tensors' dtypes."""
    return max(_ROUNDING[keras.backend.standardize_dtype(x.dtype)] for x in tensors)


def _largest(x: Floats) -> float:
    return float(np.abs(x).max(initial=0.0))


def _project_heads(projection: Any, place: Place, x: Any) -> list[Floats]:
    """Return what a projection makes of each head (B, T, N, V) alone, without its bias: N times (B, T, D)."""
    B, T, N, V = x.shape
    shape = (B, T, N * V) if len(place.raw_shape) == 3 else x.shape
    if len(place.raw_shape) > 4:
        shape = place.raw_shape
    with current().without_gradients():
        nothing = _to_float64(projection(ops.reshape(ops.zeros_like(x), shape)))
        found: list[Floats] = []
        for head in range(N):
            alone = ops.where((np.arange(N) == head)[:, None], x, ops.zeros((), x.dtype))
            y = _to_float64(projection(ops.reshape(alone, shape))) - nothing
            found.append(y.reshape(B, T, y.shape[-1]))
    return found


def value_norms(
    model: Any,
    inputs: Any,
    *,
    layers: Sequence[str] | None = None,
    call_arguments: Mapping[str, Any] | None = None,
) -> dict[str, Floats]:
    """Measure how large the vector is that each key adds to each query: ||w_ij f(v_j)||.

    f is the head's share of the output projection. A head that gives most of its weight to a key of a small value, such
    as an attention sink, adds little.

    Args:
        model, inputs, layers, call_arguments: as for `capture`.

    Returns:
        (B, N, T, S) by layer name, >= 0.

    Raises:
        ValueError: if a layer has no output projection that heed knows, or gates its heads; or as `capture`.
        TypeError, RuntimeError: as `capture`.

    Source: Kobayashi et al., "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms", 2020
        (alpha = w, f = v_j W^V W^O; its bias is left out).

    >>> import keras, numpy as np
    >>> layer = keras.layers.MultiHeadAttention(2, 4, name="attention")
    >>> values = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
    >>> value_norms(layer, values, call_arguments={"value": values})["attention"].shape
    (1, 2, 6, 6)
    """
    found: dict[str, Seen] = {}
    weights: dict[str, Floats] = {}

    def see(place: Place, x: Any) -> None:
        if place.part == "heads":
            found[place.owner] = Seen(place, x)

    def take(full: str, attention: ObservedAttention, kind: str) -> None:
        _, N, T, _ = attention.sizes
        weights[full] = attention.compute_weights(range(T), range(N))

    call = ModelCall(model, inputs, call_arguments)
    with current().without_gradients():
        _, names = run_observed(call, take, layers, taps=(see,))
        norms = {}
        for full, w in weights.items():
            seen = found.get(full)
            projection = None if seen is None else find_projection(seen.place.layer)
            if seen is None or projection is None or not seen.place.raw_shape:
                raise ValueError(
                    "Layers must project their heads by a layer that heed knows by its name, such as `output_dense`. "
                    f"Received: {names[full]!r}, without one"
                )
            if not w.size:
                norms[names[full]] = w
                continue
            attention = seen.place.attention
            if isinstance(attention, FusedAttention):
                if not _is_sum(seen.x, [attention.heads]):
                    raise ValueError(
                        "Layers must project their heads as they are. "
                        f"Received: {names[full]!r}, which changes them before, as by a gate"
                    )
                values = ops.transpose(attention.values, (0, 2, 1, 3))
            else:
                values = _find_values(call, full, w.shape)
            # Positions of keys, not of queries.
            projected = _project_heads(projection, seen.place, ops.cast(values, seen.x.dtype))
            sizes = np.stack([np.linalg.norm(x, axis=-1) for x in projected], axis=1)
            norms[names[full]] = w * sizes[:, :, None].astype(w.dtype)
    return norms


def _find_values(call: ModelCall, name: str, sizes: tuple[int, ...]) -> Any:
    """Return the values (B, S, N, V) of an attention that gives only its weights: each query reads one key."""
    B, N, T, S = sizes
    parts: list[Any] = []
    for start in range(0, S, T):
        keys = np.minimum(np.arange(start, start + T), S - 1)
        picked = np.broadcast_to(np.eye(S, dtype="float32")[keys], (B, N, T, S))

        def tap(place: Place, x: Any, picked: Any = picked) -> Any:
            if place.name == f"{name}/weights":
                return x.replace_weights(range(T), picked)
            if place.name == f"{name}/heads":
                parts.append(x)
            return None

        with watch(Session(taps=(tap,))):
            call()
    return ops.concatenate(parts, axis=1)[:, :S]


def gradient_times_attention(
    model: Any,
    inputs: Any,
    target: Callable[[Any], Any],
    *,
    steps: int | None = None,
    layers: Sequence[str] | None = None,
    call_arguments: Mapping[str, Any] | None = None,
) -> dict[str, Floats]:
    """Return the contribution of each weight to a scalar function of the outputs, to first order or integrated.

    contribution_bnij = w_bnij dL/dw_bnij, or with `steps`
    contribution_bnij = w_bnij integral_0^1 dL/dw_bnij(a w) da, where a scales all weights of one layer

    Args:
        model, inputs, layers, call_arguments: as for `capture`.
        target: takes the model's outputs and returns a scalar tensor L, such as the logit of one class of one entry.
        steps: how many points of the integral to take, layer by layer (integrated gradients); then the contributions of
            a layer sum to L less the L of a layer without attention. Default: none, the gradient at the weights.

    Returns:
        By layer name (B, N, T, S), signed, for every weight of every head. 0 where L does not depend on a weight.

    Raises:
        ValueError, TypeError: as `capture`, or if L is not a scalar tensor.

    Numerics: the points are those of Gauss and Legendre, exact for polynomials of degree 2 steps - 1 in a. Where a
        layer normalises the output of its attention (Gemma 2), L changes mostly near a = 0, below the root of the
        norm's epsilon over the output's size: the sum misses that with few steps, and meets it with hundreds.

    Source: Chefer et al., "Generic Attention-Model Explainability for Interpreting Bi-Modal and Encoder-Decoder
        Transformers", 2021, who keep the positive part and average over heads; Hao et al., "Self-Attention
        Attribution", 2021, integrate it.

    >>> import keras, numpy as np
    >>> x = keras.Input((6, 8))
    >>> model = keras.Model(x, keras.layers.Attention(name="attention")([x, x]))
    >>> values = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
    >>> found = gradient_times_attention(model, values, lambda y: y[0, 2, 3])["attention"]
    >>> bool(np.isclose(found.sum(), model(values)[0, 2, 3], atol=1e-5)), float(abs(found[0, 0, 0]).max())
    (True, 0.0)
    """
    check_function("target", target)
    steps = check_integer("steps", steps, least=1, optional=True)
    call = ModelCall(model, inputs, call_arguments)
    names, found, gradients = _compute_gradients(call, target, layers)
    if steps is not None:
        points, shares = np.polynomial.legendre.leggauss(steps)
        gradients = [0.0] * len(found)
        for full in dict.fromkeys(name for name, _ in found):
            for point, share in zip((points + 1) / 2, shares / 2, strict=True):
                *_, of_layer = _compute_gradients(call, target, layers, full, float(point))
                rest = iter(of_layer)
                for i, (name, _) in enumerate(found):
                    if name == full:
                        gradients[i] = gradients[i] + share * next(rest)
    products: dict[str, list[Floats]] = {}
    for (full, attention), gradient in zip(found, gradients, strict=True):
        _, N, T, _ = attention.sizes
        product = attention.compute_weights(range(T), range(N)) * attention.compute_gradient(
            gradient
        )
        products.setdefault(names[full], []).append(product)
    return {name: np.concatenate(steps, axis=2) for name, steps in products.items()}


def _compute_gradients(
    call: ModelCall,
    target: Callable[[Any], Any],
    layers: Sequence[str] | None,
    only: str | None = None,
    scale: float = 1.0,
) -> tuple[dict[str, str], list[tuple[str, ObservedAttention]], list[Any]]:
    """Compute the gradients of a target at the outputs of attentions, or at `scale` times those of one.

    Returns:
        The short names of all attentions by full name; the attentions, several of one name for a recurrent decoder;
        and the gradient of each.
    """
    found: list[tuple[str, ObservedAttention]] = []
    short: dict[str, str] = {}

    def compute(mark: Callable[[Any], Any]) -> Any:
        traced = bool(found)  # again, to trace it

        def take(full: str, attention: ObservedAttention, kind: str) -> Any:
            if only is not None and full != only:
                return None
            if not traced:
                found.append((full, attention))
            return mark(attention.output if only is None else scale * attention.output)

        outputs, names = run_observed(call, take, layers, traced)
        short.update(names)
        return _scalar(target(outputs))

    gradients = current().gradients(compute)
    return short, found, gradients
