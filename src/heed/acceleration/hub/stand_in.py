"""Objects that take the place of a tensor until one is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from keras import ops


class StandIn(ABC):
    """What stands for a tensor, to which the framework of Keras' backend converts it."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the tensor."""

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """The dtype of the tensor."""

    @abstractmethod
    def to_tensor(self) -> Any:
        """Make the tensor, which copies its numbers."""

    @property
    def ndim(self) -> int:
        """The number of axes of the tensor."""
        return len(self.shape)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """Return the tensor, for TensorFlow."""
        made = self.to_tensor()
        return made if dtype is None else ops.cast(made, dtype.name)

    def __jax_array__(self) -> Any:
        """Return the tensor, for JAX."""
        return self.to_tensor()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the tensor as an array, which PyTorch converts."""
        made = ops.convert_to_numpy(self.to_tensor())
        return made if dtype is None else made.astype(dtype)
