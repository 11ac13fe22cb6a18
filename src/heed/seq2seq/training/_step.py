"""A compiled training step and a compiled validation step, on any tf.distribute strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from heed.ops import softmax_cross_entropy
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.tasks.task import Batch
from heed.seq2seq.tokens.tokenizer import UNKNOWN_ID
from heed.seq2seq.training._workers import Workers

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.98, 1e-7
_TOKENS = tf.TensorSpec((None, None), tf.int32)
_ALIGNMENT = tf.TensorSpec((None, None, None), tf.float32)
# Gradients are summed in pieces of 8 MiB. A piece leaves while the rest are computed, and its buffers are used again:
# malloc returns larger ones after each message, and zeroing new ones takes longer than the message.
_PIECES = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=8 * 2**20)
_LEAST = 1e-9  # added to weights before the logarithm


class Validation(NamedTuple):
    """A model's scores on held-out pairs, with teacher forcing; the names are those in metrics.jsonl.

    `exact` is also the share that greedy decoding gets right: it errs at some token exactly if the model, given the
    right tokens before, errs at one. A row with an unknown token, or without its end, is never right: no translation
    has its text.
    """

    loss: float
    token_accuracy: float
    exact: float


class TrainingStep:
    """The model, the state of its optimizer, and the functions that use them.

    Adam on the gradient of the mean cross-entropy over all target tokens of the step's batches:
    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g**2;
    w = w - rate * sqrt(1 - b2**t) / (1 - b1**t) * m / (sqrt(v) + 1e-7),
    with b1 = 0.9, b2 = 0.98, t counted from 1, and g scaled down to the global norm `clip_norm`.

    Gradients are summed over all replicas and over the batches of a step before they are clipped: n replicas, or n
    batches, take the step that one would take on the whole batch.

    If batches have alignments A (B, T, S), the loss adds `alignment_weight` * mean_t -sum_s A[t, s] log a[t, s] over
    the aligned tokens t. a is the mean of the heads of the cross-attention that aligns best, the only one whose weights
    are built.

    After step t the moving average is a = a + (1 - d) (w - a) with d = min(ema, (1 + t) / (10 + t)), so that it forgets
    the first weights soon, however slow it is later.

    Args:
        model: a built model, made in the scope of `strategy`: called with a dict of "source" and "target" it returns
            logits, and its `config` has `pad_id`, `start_id` and `target_vocabulary_size`.
        options: how it is trained.
        strategy: the batch is spread over its replicas.
        one_shape: whether nearly all batches have the same shape.
        guided: whether batches have alignments.

    Attributes:
        first, second: m and v, for each trainable weight.
        average: the moving average of each of the model's weights; empty without `ema`.

    Source: Kingma and Ba, "Adam" (2015), in the order of its section 2; Vaswani et al., "Attention is all you need"
        (2017) for b2; Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992); Chen,
        Matusov, Khadivi and Peter, "Guided alignment training for topic-aware neural machine translation" (2016), and
        Garg, Peitz, Nallasamy and Paulik, "Jointly learning to align and translate with Transformer models" (2019), for
        the alignments.
    """

    def __init__(
        self,
        model: Any,
        options: TrainingOptions,
        strategy: tf.distribute.Strategy,
        one_shape: bool = False,
        guided: bool = False,
    ) -> None:
        self.model = model
        self._options = options
        self._strategy = strategy
        self._weights = [variable.value for variable in model.trainable_variables]
        with strategy.scope():
            self.first, self.second = _make_zeros(self._weights), _make_zeros(self._weights)
            self._sums = _make_zeros(self._weights) if options.accumulate > 1 else []
            averaged = model.weights if options.ema else ()
            self.average = [tf.Variable(w.value, trainable=False) for w in averaged]
        # Known shapes trace in half the time and run a tenth faster. Otherwise one trace serves all shapes; a batch
        # spread over replicas cannot have a signature.
        scalars = tf.TensorSpec((7,), tf.float32)
        # One replica in this process takes plain tensors, also beside other workers. These must all trace at the same
        # step, so that their collective operations get the same keys: a signature sees to that.
        self._workers = Workers(strategy)
        single = self._workers.replicas == 1
        signature = (scalars, _TOKENS, _TOKENS, *([_ALIGNMENT] if guided else ()))
        same = one_shape and not (self._workers.several and options.batch_tokens)
        self._train = _compile(self._all_replicas, None if same or not single else signature)
        self._stops: Any = None
        self._step_from_sums = _compile(self._from_sums, (scalars,))
        self._validate = _compile(self._count, None if one_shape else (_TOKENS, _TOKENS))

    def __call__(
        self, batch: Batch, step: int, rate: float, more: Sequence[Batch] = (), stop: bool = False
    ) -> tf.Tensor:
        """Take one step, 0 for the first, on the whole batch of all replicas; return the loss before it, a float32.

        Args:
            batch, step, rate: the batch, the number of the step, and the learning rate.
            more: further batches of the same step, if the options accumulate several.
            stop: whether this worker requests a stop; `stops` tells all workers.
        """
        batches, done = (batch, *more), step + 1
        tokens = sum(int((one.target != self.model.config.pad_id).sum()) for one in batches)
        decay = min(self._options.ema, (1 + done) / (10 + done))
        aligned = sum(
            np.count_nonzero(x.alignment.any(-1)) for x in batches if x.alignment is not None
        )
        weight = self._options.alignment_weight / max(1, aligned)
        scalars = tf.constant(
            [1 / max(1, tokens), rate, _BETA_1**done, _BETA_2**done, decay, weight, float(stop)],
            tf.float32,
        )
        losses = [
            self._train(scalars, *(self._spread(part) for part in one if part is not None))
            for one in batches
        ]
        if self._sums:
            self._step_from_sums(scalars)
        total = losses[0] if len(losses) == 1 else tf.add_n(losses)
        if self._strategy.num_replicas_in_sync == 1:
            self._stops = stop
            return total
        self._stops = total[1]
        return total[0]

    @property
    def stops(self) -> int:
        """On how many replicas a stop was requested in the last step."""
        return round(float(self._stops))

    @contextlib.contextmanager
    def use_average(self) -> Iterator[None]:
        """Give the model the moving average of its weights in the block, if there is one."""
        weights = self.model.weights if self.average else []
        kept = [weight.numpy() for weight in weights]
        try:
            for weight, average in zip(weights, self.average, strict=True):
                weight.assign(average.numpy())
            yield
        finally:
            for weight, value in zip(weights, kept, strict=True):
                weight.assign(value)

    def _spread(self, rows: np.ndarray) -> Any:
        """Give each replica every n-th row."""
        count = self._strategy.num_replicas_in_sync
        if self._workers.replicas == 1:
            return tf.constant(rows[self._workers.rank :: count])
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(rows[context.replica_id_in_sync_group :: count])
        )

    def _all_replicas(self, scalars: tf.Tensor, *batch: Any) -> tf.Tensor:
        losses = self._strategy.run(self._one_replica, args=(scalars, *batch))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def _one_replica(
        self, scalars: tf.Tensor, source: tf.Tensor, target: tf.Tensor, *alignment: tf.Tensor
    ) -> tf.Tensor:
        pad_id, smoothing = self.model.config.pad_id, self._options.label_smoothing
        with tf.GradientTape() as tape:
            if alignment:
                inputs = self._inputs(source, target)
                logits, attention = self.model(
                    inputs, training=True, return_attention_scores="alignment"
                )
            else:
                logits = self._logits(source, target, training=True)
            losses = softmax_cross_entropy(
                logits, target, label_smoothing=smoothing, ignore_class=pad_id
            )
            loss = tf.reduce_sum(losses) * scalars[0]
            if alignment:
                logs = tf.math.log(tf.cast(attention, tf.float32) + _LEAST)
                loss -= tf.reduce_sum(alignment[0] * logs) * scalars[5]
        gradients = tape.gradient(loss, self._weights)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients, _PIECES)
        if self._sums:
            context.merge_call(self._add, args=(gradients,))
        else:
            self._apply(context, gradients, scalars)
        # The request travels with the loss: an own message in each step would cost a round trip.
        return loss if self._strategy.num_replicas_in_sync == 1 else tf.stack([loss, scalars[6]])

    def _from_sums(self, scalars: tf.Tensor) -> None:
        """Take the step of the summed gradients, and resets the sums."""

        def one_replica(scalars: tf.Tensor) -> None:
            context = tf.distribute.get_replica_context()
            self._apply(context, [tf.convert_to_tensor(one) for one in self._sums], scalars)
            context.merge_call(self._forget)

        self._strategy.run(one_replica, args=(scalars,))

    def _apply(self, context: Any, gradients: Sequence[Any], scalars: tf.Tensor) -> None:
        gradients, _ = tf.clip_by_global_norm(gradients, self._options.clip_norm)
        context.merge_call(self._update, args=(gradients, scalars))

    def _add(self, strategy: tf.distribute.Strategy, gradients: Sequence[Any]) -> None:
        for total, gradient in zip(self._sums, gradients, strict=True):
            strategy.extended.update(total, _add, args=(gradient,))

    def _forget(self, strategy: tf.distribute.Strategy) -> None:
        for total in self._sums:
            strategy.extended.update(total, _forget)

    def _update(
        self, strategy: tf.distribute.Strategy, gradients: Sequence[Any], scalars: Any
    ) -> None:
        for weight, first, second, gradient in zip(
            self._weights, self.first, self.second, gradients, strict=True
        ):
            strategy.extended.update(weight, _adam, args=(first, second, gradient, scalars))
        weights = [weight.value for weight in self.model.weights] if self.average else []
        for average, weight in zip(self.average, weights, strict=True):
            strategy.extended.update(average, _follow, args=(weight, scalars[4]))

    def _inputs(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        start = tf.fill((tf.shape(target)[0], 1), self.model.config.start_id)
        return {"source": source, "target": tf.concat([start, target[:, :-1]], axis=1)}

    def _logits(self, source: tf.Tensor, target: tf.Tensor, training: bool) -> tf.Tensor:
        return self.model(self._inputs(source, target), training=training)

    def _count(self, source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """Sum loss, right tokens, tokens, right rows, rows."""
        logits = self._logits(source, target, training=False)
        config = self.model.config
        losses = softmax_cross_entropy(logits, target, ignore_class=config.pad_id)
        real = tf.not_equal(target, config.pad_id)
        # As decoding does: padding and the start token are never predicted.
        never = tf.one_hot([config.pad_id, config.start_id], config.target_vocabulary_size)
        predicted = tf.argmax(
            logits - 1e9 * tf.reduce_sum(never, 0), axis=-1, output_type=target.dtype
        )
        right = tf.equal(predicted, target)
        right = tf.logical_and(right, tf.not_equal(target, UNKNOWN_ID))
        whole = tf.reduce_any(tf.equal(target, config.end_id), axis=1)
        rows = tf.logical_and(whole, tf.reduce_all(tf.logical_or(right, ~real), axis=1))
        counts = [
            tf.math.count_nonzero(tf.logical_and(right, real)),
            tf.math.count_nonzero(real),
            tf.math.count_nonzero(rows),
            tf.shape(target, out_type=tf.int64)[0],
        ]
        return tf.stack([tf.cast(value, tf.float64) for value in (tf.reduce_sum(losses), *counts)])

    def validate(self, batches: Sequence[Batch]) -> Validation:
        """Compute loss and accuracy on held-out batches."""
        counts = [
            self._validate(tf.constant(one.source), tf.constant(one.target)).numpy()
            for one in batches
        ]
        loss, right, tokens, exact, rows = np.sum(counts, axis=0).tolist()
        return Validation(loss / max(1, tokens), right / max(1, tokens), exact / max(1, rows))


def _compile(function: Callable[..., Any], signature: tuple[tf.TensorSpec, ...] | None) -> Any:
    """Compile the function to a graph, without AutoGraph: no Python condition depends on a tensor."""
    return tf.function(
        function, input_signature=signature, autograph=False, reduce_retracing=signature is None
    )


def _make_zeros(weights: Sequence[tf.Variable]) -> list[tf.Variable]:
    return [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in weights]


def _add(total: tf.Variable, gradient: tf.Tensor) -> None:
    total.assign_add(tf.cast(gradient, total.dtype))


def _forget(total: tf.Variable) -> None:
    total.assign(tf.zeros_like(total))


def _follow(average: tf.Variable, weight: tf.Tensor, decay: tf.Tensor) -> None:
    weight = tf.cast(tf.convert_to_tensor(weight), average.dtype)
    average.assign_add(tf.cast(1 - decay, average.dtype) * (weight - average))


def _adam(
    weight: tf.Variable,
    first: tf.Variable,
    second: tf.Variable,
    gradient: tf.Tensor,
    scalars: tf.Tensor,
) -> tf.Operation:
    """Return Adam as one operation for each variable: separate ones make the whole step a quarter longer."""
    cast = [tf.cast(scalar, weight.dtype) for scalar in tf.unstack(scalars)]
    return tf.raw_ops.ResourceApplyAdam(
        var=weight.handle,
        m=first.handle,
        v=second.handle,
        lr=cast[1],
        beta1_power=cast[2],
        beta2_power=cast[3],
        beta1=tf.constant(_BETA_1, weight.dtype),
        beta2=tf.constant(_BETA_2, weight.dtype),
        epsilon=tf.constant(_EPSILON, weight.dtype),
        grad=tf.cast(gradient, weight.dtype),
    )
