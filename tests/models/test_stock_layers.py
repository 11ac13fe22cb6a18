"""heed's Transformer learns as the same model of stock Keras layers does: the same loss and gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from heed.layers import replace_attention
from heed.layers.dropout import Dropout
from heed.models import Transformer, TransformerConfig

SOURCE = np.array([[5, 6, 7, 2], [8, 9, 2, 0]], "int32")
TARGET = np.array([[1, 5, 6], [1, 7, 0]], "int32")


@pytest.mark.slow
def test_heeds_learns_as_stock_layers_do(monkeypatch):
    """The same weights, and the same numbers dropped: the same loss and gradients."""
    sizes = {"width": 8, "num_heads": 2, "feed_forward_width": 16, "decoder_layers": 2}
    heeds = Transformer(TransformerConfig(30, 40, tie_embeddings=False, dropout=0.3, **sizes))
    heeds.build()
    for variable in heeds.trainable_variables:
        variable.assign(variable + 0.1 * keras.random.normal(variable.shape))  # biases are not 0
    monkeypatch.setattr(keras.layers, "Dropout", Dropout)
    stock = replace_attention(heeds, by="keras")
    by_name = {x.path.replace("/", "_"): x for x in stock.trainable_variables}
    names = [x.path.split("/", 1)[1].replace("/", "_") for x in heeds.trainable_variables]
    names = [name.replace("_embedding_tokens", "_tokens") for name in names]
    assert sorted(names) == sorted(by_name)

    def learned(model, variables):
        dropping = [layer for layer in model._flatten_layers() if isinstance(layer, Dropout)]
        assert len(dropping) == 1 + 2 * 3 + 1 + 2 * 4
        for layer in dropping:  # a seed for all, in whatever order they are
            layer.seed_generator.state.assign([7, 7])
        with tf.GradientTape() as tape:
            logits = model({"source": SOURCE, "target": TARGET}, training=True)
            losses = keras.ops.log_softmax(logits)[..., 5]
            loss = -tf.reduce_sum(losses * [[1.0, 1, 1], [1, 1, 0]])
        found = tape.gradient(loss, [variable.value for variable in variables])
        return loss, [np.asarray(tf.convert_to_tensor(x)) for x in found]

    loss, gradients = learned(heeds, heeds.trainable_variables)
    wanted, expected = learned(stock, [by_name[name] for name in names])
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    for name, one, other in zip(names, gradients, expected, strict=True):
        atol = 1e-3 * max(np.abs(other).max(), 0.01)
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=atol, err_msg=name)
        assert np.any(other) or name.endswith("key_bias")
