"""The cases, each one attention with its shapes and options."""

from __future__ import annotations

from dataclasses import dataclass

SIZES = {"float32": 4, "bfloat16": 2}
MODEL_LAYERS = 4


@dataclass(frozen=True)
class Case:
    """One attention over random inputs.

    Args:
        batch: B.
        heads: N; 1 for additive attention, which has none.
        length: T.
        head_dim: H and V; U and V for additive attention.
        causal: whether query i sees only keys j <= i.
        backward: whether to compute the gradients of all inputs too.
        kind: "dot-product"; "additive"; "layer", self-attention of width N*H with projections; "model", a Transformer
            of that width with four layers, a decoder if causal, else an encoder, whose backward is a training step;
            "generate", an encoder and a decoder of that width with three layers each, which decode T tokens for each
            text of S without ending early; "training", a training step of such a model on texts of S and T tokens;
            "continue", a GPT-2 of that width with four layers, which decodes T tokens after each prompt of S.
        keys: S; None for T.
        key_heads: K; None for N.
        window: the number of keys that a query of a causal attention sees, itself included; None for all.
        padded: whether the items have fewer valid keys than S, see `key_lengths`.
        dtype: "float32" or "bfloat16".
        chain: the number of forward passes in a row, in one graph for sides with graphs, each with the output of the
            one before as its query. The time is then that of one more, without the call of the graph.
        beams: for "generate", the number of hypotheses of a beam search; 1 is greedy.
        weights: for "generate", how weights are stored, "float32" or "int8".
    """

    batch: int
    heads: int
    length: int
    head_dim: int
    causal: bool = False
    backward: bool = False
    kind: str = "dot-product"
    keys: int | None = None
    key_heads: int | None = None
    window: int | None = None
    padded: bool = False
    dtype: str = "float32"
    chain: int = 1
    beams: int = 1
    weights: str = "float32"

    @property
    def name(self) -> str:
        """The name in tables, such as `causal fwd (1, 8, 4096, 64)`."""
        weights = self.weights if self.weights != "float32" else ""
        padded = "padded" if self.padded else ""
        passes = "training step" if self.backward else "forward"
        words = {
            "model": [padded, "decoder" if self.causal else "encoder", passes],
            "continue": ["greedy after a prompt"],
            "generate": [weights, "greedy" if self.beams == 1 else f"beam {self.beams}"],
            "training": ["training step"],
        }.get(self.kind) or [
            f"one of {self.chain}:" if self.chain > 1 else "",
            "additive" if self.kind == "additive" else "",
            f"window {self.window}" if self.window is not None else "",
            "causal" if self.causal else "",
            padded,
            self.dtype if self.dtype != "float32" else "",
            "fwd+bwd" if self.backward else "decoding" if self.length == 1 else "fwd",
        ]  # fmt: skip
        if self.kind == "additive":
            middle = [str(self.length), str(self.key_length)]
        else:
            middle = [_pair(self.heads, self.key_heads), _pair(self.length, self.keys)]
        shape = [self.batch, *middle, self.head_dim]
        return f"{' '.join(filter(None, words))} ({', '.join(map(str, shape))})"

    @property
    def key_length(self) -> int:
        """S."""
        return self.length if self.keys is None else self.keys

    @property
    def key_head_count(self) -> int:
        """K."""
        return self.heads if self.key_heads is None else self.key_heads

    @property
    def key_lengths(self) -> list[int]:
        """Valid keys of each item: all, or for a padded case from a quarter of S to all, evenly spaced."""
        if not self.padded or self.batch == 1:
            return [self.key_length] * self.batch
        least = max(1, self.key_length // 4)
        return [
            least + (self.key_length - least) * item // (self.batch - 1)
            for item in range(self.batch)
        ]

    @property
    def operations(self) -> float:
        """Floating-point operations of the matrix products, by convention without regard to masks."""
        forward = 4.0 * self.batch * self.heads * self.length * self.key_length * self.head_dim
        return forward * (3.5 if self.backward else 1.0)

    @property
    def visible_operations(self) -> float:
        """Floating-point operations of the matrix products, of the pairs that the masks leave visible."""
        pairs = sum(
            max(0, min(query + 1 if self.causal else keys, keys) - first)
            for keys in self.key_lengths
            for query in range(self.length)
            for first in [0 if self.window is None else max(0, query + 1 - self.window)]
        )
        return self.operations * pairs / (self.batch * self.length * self.key_length)

    @property
    def score_bytes(self) -> int:
        """Size of the float32 score tensor, which heed never builds: (B, N, T, S); (B, T, S, U) for additive."""
        units = self.head_dim if self.kind == "additive" else self.heads
        return self.batch * self.length * self.key_length * units * 4

    @property
    def score_tensors(self) -> int:
        """The number of score tensors that a side which builds them holds at a time, gradients and masks included."""
        if self.kind == "model" and self.backward:
            # Each layer keeps attention weights before and after dropout.
            return 3 * MODEL_LAYERS + 1
        return 7


def _pair(query: int, key: int | None) -> str:
    return str(query) if key is None else f"{query}/{key}"
