"""What llama.cpp computes with a GGUF file, in float64 NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]
# Layers with windows: all but every n-th one.
_PATTERNS = {"gemma2": 2, "gemma3": 6}
_NEAR_BASE = 10000.0


@dataclasses.dataclass
class File:
    """The contents of a file: `settings` by key, and `tensors` by name, as numbers."""

    settings: dict[str, Any]
    tensors: dict[str, _Array]
    types: dict[str, str]

    @classmethod
    def read(cls, path: Path | str) -> File:
        import gguf

        reader = gguf.GGUFReader(path)
        return cls(
            {name: field.contents() for name, field in reader.fields.items()},
            {
                x.name: gguf.quants.dequantize(x.data, x.tensor_type).astype(np.float64)
                for x in reader.tensors
            },
            {x.name: x.tensor_type.name for x in reader.tensors},
        )

    @property
    def architecture(self) -> str:
        return str(self.settings["general.architecture"])

    def of(self, key: str, default: Any = None) -> Any:
        """Return a setting of the architecture."""
        return self.settings.get(f"{self.architecture}.{key}", default)

    def logits(self, tokens: Any) -> _Array:
        """Return the scores (T, V) of the token after each of `tokens` (T,)."""
        is_gemma = self.architecture.startswith("gemma")
        x = self.tensors["token_embd.weight"][np.asarray(tokens)]
        if is_gemma:
            x = x * np.sqrt(x.shape[-1])
        for number in range(self.of("block_count")):
            x = self._layer(number, x)
        x = self._norm("output_norm", x)
        table = "token_embd.weight" if "output.weight" not in self.tensors else "output.weight"
        logits = x @ self.tensors[table].T + self.tensors.get("output.bias", 0)
        cap = self.of("final_logit_softcapping")
        return logits if cap is None else cap * np.tanh(logits / cap)

    def _layer(self, number: int, x: _Array) -> _Array:
        def norm(name: str, x: _Array) -> _Array:
            return self._norm(f"blk.{number}.{name}", x)

        def dense(name: str, x: _Array) -> _Array:
            bias = self.tensors.get(f"blk.{number}.{name}.bias", 0)
            return x @ self.tensors[f"blk.{number}.{name}.weight"].T + bias

        x = x + norm("post_attention_norm", self._attention(number, norm("attn_norm", x), dense))
        y = norm("ffn_norm", x)
        gate = dense("ffn_gate", y)
        if self.architecture.startswith("gemma"):
            gate = gate * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return x + norm("post_ffw_norm", dense("ffn_down", gate * dense("ffn_up", y)))

    def _attention(self, number: int, x: _Array, dense: Callable[[str, _Array], _Array]) -> _Array:
        N, K, H = (self.of(f"attention.{x}") for x in ("head_count", "head_count_kv", "key_length"))
        pattern, window = _PATTERNS.get(self.architecture), self.of("attention.sliding_window")
        near = bool(pattern and window and number % pattern < pattern - 1)
        query, key, value = (dense(f"attn_{name}", x).reshape(len(x), -1, H) for name in "qkv")
        query, key = (
            self._rotate(self._norm(f"blk.{number}.attn_{name}_norm", y), near)
            for name, y in (("q", query), ("k", key))
        )
        key, value = (np.repeat(y, N // K, axis=1) for y in (key, value))
        scores = np.einsum("tnh,snh->nts", query, key) / np.sqrt(H)
        if (cap := self.of("attn_logit_softcapping")) is not None:
            scores = cap * np.tanh(scores / cap)
        distance = np.arange(len(x))[:, None] - np.arange(len(x))
        seen = (distance >= 0) & ((distance < window) if near else True)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        heads = np.einsum("nts,snh->tnh", weights, value)
        return dense("attn_output", heads.reshape(len(x), -1))

    def _norm(self, name: str, x: _Array) -> _Array:
        """Normalise if there is such a tensor."""
        gamma = self.tensors.get(f"{name}.weight")
        if gamma is None:
            return x
        epsilon = self.of("attention.layer_norm_rms_epsilon")
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon) * gamma

    def _rotate(self, x: _Array, near: bool) -> _Array:
        H = x.shape[-1]
        own_base = near and self.architecture == "gemma3"
        base = _NEAR_BASE if own_base else self.of("rope.freq_base")
        factors = self.tensors.get("rope_freqs.weight", np.ones(H // 2))
        if not own_base:
            factors = factors * self.of("rope.scaling.factor", 1.0)
        angles = np.arange(len(x))[:, None, None] * base ** (-np.arange(H // 2) * 2 / H) / factors
        turned = np.exp(1j * angles)
        if self.architecture == "llama":
            pairs = (x[..., ::2] + 1j * x[..., 1::2]) * turned
            return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)
        pairs = (x[..., : H // 2] + 1j * x[..., H // 2 :]) * turned
        return np.concatenate([pairs.real, pairs.imag], axis=-1)
