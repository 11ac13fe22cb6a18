"""A model that `heed.models.generate` decodes: a recurrent layer that describes points, without attention."""

# ruff: noqa: D102  (`Decodable` describes the methods)

import types
from typing import Any

import keras
import numpy as np

from heed.models import generate


class Describer(keras.Model):
    """Points (B, 2) to tokens: a GRU whose initial state is a projection of the point."""

    def __init__(self, vocabulary_size: int, width: int) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(
            pad_id=0,
            start_id=1,
            end_id=2,
            target_vocabulary_size=vocabulary_size,
            longest_target=None,  # no bound
        )
        self.first = keras.layers.Dense(width, activation="tanh")
        self.embedding = keras.layers.Embedding(vocabulary_size, width)
        self.memory_cell = keras.layers.GRU(width, return_sequences=True, return_state=True)
        self.scores = keras.layers.Dense(vocabulary_size, dtype="float32")

    def build(self, input_shape: Any = None) -> None:
        self.first.build((None, 2))
        for layer in (self.embedding, self.memory_cell, self.scores):
            layer.build((None, None, self.embedding.output_dim))

    def call(
        self, inputs: dict[str, Any]
    ) -> Any:  # for `fit`: {"source": (B, 2), "target": (B, T)}
        return self.decode_all(inputs["target"], self.encode_source(inputs["source"]))

    def check_source(self, source: Any) -> Any:
        return keras.ops.convert_to_tensor(source, "float32")

    def encode_source(self, source: Any) -> Any:
        return self.first(source)

    def make_state(
        self, rows: int, length: int, memory: Any
    ) -> Any:  # several rows may share a source
        repeats = rows // keras.ops.shape(memory)[0]
        return keras.ops.repeat(memory, repeats, axis=0)

    def decode_step(self, tokens: Any, index: Any, state: Any, memory: Any) -> tuple[Any, Any]:
        read, state = self.memory_cell(self.embedding(tokens), initial_state=state)
        return self.scores(read[:, -1]), state

    def decode_all(self, tokens: Any, memory: Any) -> Any:
        read, _ = self.memory_cell(self.embedding(tokens), initial_state=memory)
        return self.scores(read)


def main() -> Any:
    """Describe two points in up to six tokens each, by a beam search."""
    model = Describer(vocabulary_size=12, width=16)
    points = np.array([[0.1, 0.9], [-0.5, 0.2]])
    return generate(model, points, max_length=6, method="beam", beam_size=3)


if __name__ == "__main__":
    print(main())
