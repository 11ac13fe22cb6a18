"""Every public layer keeps the contract of `contract.py`."""

import functools

import pytest

import heed.layers
from heed.layers import (
    AdditiveAttention,
    DotProductAttention,
    FeedForward,
    LearnedPositions,
    LocationAwareAttention,
    LuongAttention,
    MultiHeadAttention,
    SinusoidalPositions,
    TokenEmbedding,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from tests.backend import BACKEND, on_tensorflow
from tests.layers import contract
from tests.layers.contract import LayerCase, Tensor

make = functools.partial
SELF = {"query": Tensor((3, 5, 8)), "value": Tensor((3, 5, 8))}
CROSS = {"query": Tensor((3, 5, 8)), "value": Tensor((3, 7, 8))}
WIDTHS = {"query": Tensor((3, 5, 8)), "value": Tensor((3, 7, 6)), "key": Tensor((3, 7, 4))}
SEQUENCE = {"inputs": Tensor((3, 5, 8))}
STATE = {"query": Tensor((3, 8)), "value": Tensor((3, 7, 6))}

CASES = [
    LayerCase("multi_head", make(MultiHeadAttention, 2, 4), SELF, scores=True),
    LayerCase(
        "multi_head_full",
        make(
            MultiHeadAttention,
            4,
            4,
            value_dim=3,
            output_shape=(2, 5),
            num_key_value_heads=2,
            soft_cap=5.0,
            sliding_window=3,
            use_gate=True,
            kernel_regularizer="l2",
        ),
        WIDTHS,
        {"use_causal_mask": True},
        scores=True,
    ),
    LayerCase(
        "multi_head_beyond_keras",
        make(MultiHeadAttention, 2, 4, position="rotary", qk_norm=True, sinks=True),
        SELF,
        scores=True,
    ),
    LayerCase(
        "multi_head_relative",
        make(MultiHeadAttention, 2, 4, position={"kind": "relative", "num_buckets": 8}),
        CROSS,
        scores=True,
    ),
    LayerCase(
        "multi_head_axes",
        make(MultiHeadAttention, 2, 4, attention_axes=2),
        {"query": Tensor((3, 2, 5, 8)), "value": Tensor((3, 2, 7, 8))},
        scores=True,
    ),
    LayerCase(
        "multi_head_shared_side_by_side",
        make(MultiHeadAttention, 2, [3, 6], shared_projection=True, output_projection=False),
        SELF,
        scores=True,
    ),
    LayerCase(
        "multi_head_own_widths",
        make(MultiHeadAttention, 2, [3, 6], value_dim=(5, 4), use_gate=True, position="alibi"),
        WIDTHS,
        scores=True,
    ),
    LayerCase(
        "multi_head_side_by_side_axes",
        make(MultiHeadAttention, 2, 4, output_projection=False, attention_axes=2),
        {"query": Tensor((3, 2, 5, 8)), "value": Tensor((3, 2, 7, 8))},
        scores=True,
    ),
    LayerCase("dot_product", make(DotProductAttention), CROSS, scores=True),
    LayerCase(
        "dot_product_causal",
        make(DotProductAttention, scale=0.5, soft_cap=3.0),
        SELF,
        {"use_causal_mask": True},
        scores=True,
    ),
    LayerCase("additive", make(AdditiveAttention, 5), WIDTHS, scores=True),
    LayerCase(
        "additive_state",
        make(AdditiveAttention, 5, use_bias=False),
        STATE,
        scores=True,
        carries_mask=False,
    ),
    LayerCase(
        "location_aware",
        make(LocationAwareAttention, 5, filters=3, kernel_size=3),
        {**STATE, "previous_weights": Tensor((3, 7), positions=True)},
        carries_mask=False,
    ),
    LayerCase("luong_dot", make(LuongAttention), CROSS, scores=True),
    LayerCase("luong_general", make(LuongAttention, "general"), WIDTHS, scores=True),
    LayerCase(
        "luong_state", make(LuongAttention, "general"), STATE, scores=True, carries_mask=False
    ),
    LayerCase(
        "embedding",
        make(TokenEmbedding, 11, 8),
        {"inputs": Tensor((3, 5), ids=11)},
        carries_mask=False,  # it makes the mask
    ),
    LayerCase("sinusoidal", make(SinusoidalPositions), SEQUENCE),
    LayerCase("learned", make(LearnedPositions, 9), SEQUENCE),
    LayerCase("feed_forward", make(FeedForward, 12, activation="gelu"), SEQUENCE),
    LayerCase("gated feed-forward", make(FeedForward, 12, gated=True), SEQUENCE),
    LayerCase("encoder", make(TransformerEncoderLayer, 2, 12), SEQUENCE, scores=True),
    LayerCase(
        "encoder with all options",
        make(
            TransformerEncoderLayer,
            2,
            12,
            normalization="rms",
            gated=True,
            qk_norm=True,
            sinks=True,
            soft_cap=5.0,
        ),
        SEQUENCE,
        scores=True,
    ),
    LayerCase(
        "encoder_post_norm",
        make(TransformerEncoderLayer, 4, 12, norm_first=False, num_key_value_heads=2),
        SEQUENCE,
        scores=True,
    ),
    LayerCase(
        "decoder",
        make(TransformerDecoderLayer, 2, 12),
        {"inputs": Tensor((3, 5, 8)), "encoded": Tensor((3, 7, 6))},
        scores=True,
    ),
    LayerCase(
        "decoder_alone", make(TransformerDecoderLayer, 2, 12, cross_attention=False), SEQUENCE
    ),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def by_default(*names):
    """Return all cases; by default only these, which differ in what the check reads."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, marks=[] if case.name in names else pytest.mark.slow)
            for case in CASES
        ],
        ids=str,
    )


# One case of each layer that learns something.
LEARNING = (
    "multi_head_full",
    "additive",
    "location_aware",
    "luong_general",
    "embedding",
    "encoder",
    "decoder",
)
# Each layer, and what makes its variables or shapes others.
DISTINCT = (
    *LEARNING,
    "multi_head_beyond_keras",
    "multi_head_axes",
    "multi_head_own_widths",
    "dot_product_causal",
    "additive_state",
    "sinusoidal",
    "learned",
    "gated feed-forward",
)


@every_case
def test_config(case):
    contract.check_config(case)


@by_default(*DISTINCT)
def test_files(case, tmp_path):
    contract.check_files(case, tmp_path)


@by_default(*DISTINCT)
def test_symbolic_and_eager_shapes_agree(case):
    contract.check_shapes(case)


@on_tensorflow
@by_default(*DISTINCT)
def test_unknown_batch_and_length(case):
    contract.check_unknown_sizes(case)


@by_default(*DISTINCT)
def test_mixed_precision(case):
    contract.check_mixed_precision(case, "mixed_float16")


@by_default("multi_head_full", "additive", "encoder")
def test_mixed_precision_in_bfloat16(case):
    contract.check_mixed_precision(case, "mixed_bfloat16")


@by_default("multi_head_full", "location_aware", "embedding", "decoder")
def test_training(case):
    contract.check_training(case)


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch has no XLA")
@pytest.mark.slow
@by_default("encoder")  # compiling takes seconds
def test_training_under_xla(case):
    contract.check_training_under_xla(case)


@on_tensorflow
@by_default("multi_head_full")
def test_export(case, tmp_path):
    contract.check_export(case, tmp_path)


@pytest.mark.parametrize("case", [case for case in CASES if case.carries_mask], ids=str)
def test_masks_pass_through(case):
    contract.check_mask_propagation(case)


@pytest.mark.parametrize("case", [case for case in CASES if case.scores], ids=str)
def test_scores_change_nothing(case):
    contract.check_scores(case)


def test_every_public_layer_has_a_case():
    covered = {type(case.make()).__name__ for case in CASES}
    # Called with lengths, not with tensors.
    public = {name for name in heed.layers.__all__ if isinstance(getattr(heed.layers, name), type)}
    assert covered == public - {"RelativePositionBias"}
