"""Runs Keras and KerasHub models on heed's attention.

`accelerate()` patches the attention of Keras' backend: the op, the four layers, and the function that says
whether a fused attention exists. `decelerate()` undoes it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras

from heed.acceleration import accelerated_models, switch
from heed.acceleration._patches import changes, check_keras
from heed.acceleration.hub.modules import Hub
from heed.acceleration.hub.recognition import is_language_model
from heed.config import one_of
from heed.ops.dispatch import explain
from heed.ops.recomputation import Restore, keep
from heed.patching import Patch
from heed.weights import CACHES, WEIGHTS

__all__ = ["Acceleration", "Report", "accelerate", "changes", "decelerate"]

_lock = threading.RLock()
_installed: list[Patch] = []
_keras_hub = Hub()


@dataclass(frozen=True)
class Report:
    """The accelerated functions, and the calls that ran on heed. Print it.

    Attributes:
        keras: the version of Keras.
        implementation: the implementation of heed's ops, "native" or "portable".
        scope: "everything", the names of the accelerated models, or "nothing"; with the formats of language models,
            unless float32.
        patched: the patched functions of Keras and KerasHub.
        calls: how often each layer or op ran on heed since acceleration began. A traced program counts when it is
            traced.
        left_to_keras: how often each call was left to Keras, with the reason.

    >>> import heed
    >>> with heed.accelerate() as acceleration:
    ...     "keras.ops.dot_product_attention" in acceleration.report().patched
    True
    """

    keras: str
    implementation: str
    scope: str
    patched: tuple[str, ...]
    calls: dict[str, int] = field(default_factory=dict)
    left_to_keras: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"heed accelerates {self.scope} (Keras {self.keras}, {self.implementation} attention)",
            "patched:",
            *(f"  {name}" for name in self.patched),
            "calls that ran on heed:",
            *(f"  {number:6}  {name}" for name, number in self.calls.items()),
        ]
        if self.left_to_keras:
            lines.append("calls that were left to Keras:")
            lines += [f"  {number:6}  {name}" for name, number in self.left_to_keras.items()]
        return "\n".join(lines)


class Acceleration:
    """The result of `accelerate`, and a context manager that undoes this call when it exits.

    >>> import heed, keras
    >>> layer = keras.layers.MultiHeadAttention(2, 4)
    >>> acceleration = heed.accelerate()
    >>> _ = layer(keras.ops.ones((1, 3, 8)), keras.ops.ones((1, 3, 8)))
    >>> acceleration.report().calls["keras.layers.MultiHeadAttention"] > 0
    True
    >>> heed.decelerate()
    """

    def __init__(
        self, model: Any, changed: bool, formats_before: accelerated_models.Formats
    ) -> None:
        self._model, self._changed, self._formats_before = model, changed, formats_before

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, *error: object) -> None:
        with _lock:
            if self._changed:
                _undo(self._model)
                self._changed = False
            elif self._model is None or self._model in accelerated_models.accelerated:
                accelerated_models.set_formats(self._model, self._formats_before)

    def report(self) -> Report:
        """Describe what is accelerated now, and which calls ran on heed."""
        models = [
            f"model {model.name!r}{accelerated_models.formats_of(model)}"
            for model in accelerated_models.accelerated
        ]
        everywhere = (
            [f"everything{accelerated_models.formats_of(None)}"]
            if switch.enabled_everywhere
            else []
        )
        scope = ", ".join(everywhere or sorted(models)) or "nothing"
        patched = tuple(patch.label for patch in _installed)
        return Report(
            keras.__version__,
            explain().implementation,
            scope,
            patched + _keras_hub.state if patched else (),
            dict(switch.calls),
            dict(switch.left_to_keras),
        )

    def __repr__(self) -> str:
        return f"<{self.report()}>"


def accelerate(
    model: Any = None, *, weights: str = WEIGHTS[0], cache: str = CACHES[0]
) -> Acceleration:
    """Run the attention of Keras and KerasHub models on heed.

    Accelerates `keras.ops.dot_product_attention`, `keras.layers.MultiHeadAttention`, `GroupQueryAttention`,
    `Attention`, `AdditiveAttention` and everything that calls them, with or without dropout, masks or scores. This
    includes existing layers, and KerasHub even if it is imported later. `flash_attention=True` works. Results differ by
    rounding, and where Keras is wrong: docs/keras.md lists these cases.

    On a GPU or TPU a call stays with Keras, whole, where Keras runs it as well or better (docs/backends.md);
    `.report()` says which and why.

    What `fit`, `predict` and `evaluate` have traced before is traced again; other traced programs do not change, so
    call `accelerate` before you trace a `tf.function` or `generate` a text. Acceleration applies to all threads. What a
    model computes again in its backward pass (`keras.RematScope`, gradient checkpoints) runs as it did in the forward
    pass.

    Args:
        model: a Keras model or layer to accelerate. Default: everything.
        weights: how `generate` of KerasHub's language models keeps the weights of dense layers: "float32", "bfloat16",
            "int8" or "int4" (docs/keras.md). Everything else computes with the weights of the model.
        cache: how it keeps keys and values: "float32", "bfloat16" or "int8". A second call changes both.

    Returns:
        An `Acceleration`. As a context manager it undoes this call when it exits, unless the same was accelerated
        before. `.report()` says what is patched and what ran on heed.

    Raises:
        RuntimeError: if Keras is a version that heed cannot patch. Nothing is changed then.
        TypeError: if `model` is not a Keras layer or model.
        ValueError: if `weights` or `cache` is none of these, or not "float32" for a model that is no language model.

    >>> import heed, keras, numpy as np
    >>> x = np.random.default_rng(0).normal(size=(1, 5, 2, 8)).astype("float32")
    >>> stock = keras.ops.dot_product_attention(x, x, x)
    >>> with heed.accelerate():
    ...     fast = keras.ops.dot_product_attention(x, x, x, flash_attention=True)
    >>> bool(np.allclose(stock, fast, atol=1e-6))
    True
    """
    if model is not None and not isinstance(model, keras.layers.Layer):
        raise TypeError(f"`model` must be a Keras model or layer. Received: model={model!r}")
    formats = accelerated_models.Formats(
        one_of(WEIGHTS).check("weights", weights), one_of(CACHES).check("cache", cache)
    )
    if (
        formats != accelerated_models.Formats()
        and model is not None
        and not is_language_model(model)
    ):
        raise ValueError(
            "`weights` and `cache` are for `generate` of KerasHub's language models; other models compute with what "
            f"they have. Received: weights={weights!r}, cache={cache!r} for a {type(model).__name__}"
        )
    with _lock:
        if not _installed:
            patches = check_keras()
            switch.reset_counts()
            for patch in (*patches, *accelerated_models.program_patches):
                patch.install()
            _keras_hub.install()
            _installed.extend(patches)
        if model is None:
            changed, switch.enabled_everywhere = not switch.enabled_everywhere, True
        elif changed := model not in accelerated_models.accelerated:
            accelerated_models.add(model)
        if changed:
            accelerated_models.change_scope()
        formats_before = accelerated_models.formats_of(model)
        accelerated_models.set_formats(model, formats)
    return Acceleration(model, changed, formats_before)


def decelerate(model: Any = None) -> None:
    """Undo `accelerate`.

    Args:
        model: the model to decelerate. Default: everything, including all models.

    >>> import heed, keras
    >>> _ = heed.accelerate()
    >>> heed.decelerate()
    >>> heed.accelerate().report().scope, heed.decelerate()
    ('everything', None)
    """
    with _lock:
        for each in [model] if model is not None else [None, *accelerated_models.accelerated]:
            _undo(each)


def _undo(model: Any) -> None:
    with _lock:
        if model is None:
            switch.enabled_everywhere = False
            accelerated_models.set_formats(None, accelerated_models.Formats())
        elif model in accelerated_models.accelerated:
            accelerated_models.remove(model)
        accelerated_models.change_scope()
        if _installed and not switch.enabled_everywhere and not accelerated_models.accelerated:
            accelerated_models.restore_programs()
            for patch in (*_installed, *accelerated_models.patches()):
                patch.uninstall()
            _keras_hub.uninstall()
            _installed.clear()


@keep
def _remember_scope() -> Restore:
    """Remember what is accelerated: it may have changed when a model computes again, and the patches may be gone."""
    scope = switch.find_scope()
    patches = (*_installed, *accelerated_models.patches(), *_keras_hub.patches)

    @contextmanager
    def restore() -> Iterator[None]:
        with ExitStack() as stack:
            if not all(patch.installed for patch in patches):
                for patch in patches:
                    patch.install()
                    stack.callback(patch.uninstall)
            stack.enter_context(switch.restore_scope(scope))
            yield

    return restore
