"""The contents of plots, read back from the figures."""

from __future__ import annotations

import io
import itertools
import warnings

import numpy as np
import pytest

from heed.inspect import (
    Ablation,
    Capture,
    by_head,
    plot_alignment,
    plot_cross_attention,
    plot_heads,
    plot_image_attention,
    plot_map,
    plot_model,
)
from tests.inspect.test_capture_object import planted, random_weights
from tests.slow import slow

SOURCE = "ich sehe das rote Haus".split()
TARGET = "i see it".split()


def described(S: int = 6) -> Capture:
    weights = {f"layer_{i}/cross": random_weights(2, 2, 3, S, seed=i) for i in range(2)}
    return Capture(weights, dict.fromkeys(weights, "cross"))


def translation() -> Capture:
    weights = {**described(5).weights, "layer_0/self": random_weights(2, 2, 3, 3)}
    return Capture(weights, {name: name.split("/")[1] for name in weights})


def texts(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def image_of(axes) -> np.ndarray:
    (image,) = axes.get_images()
    return np.asarray(image.get_array())


def assert_saves(figure) -> None:
    """Draw without warnings, with every label inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert figure._repr_png_().startswith(b"\x89PNG")  # which a notebook displays
    whole = figure.bbox
    for axes in figure.axes:
        if axes.get_visible():
            box = axes.get_tightbbox()
            assert box.x0 >= -2 and box.y0 >= -2  # noqa: PT018
            assert box.x1 <= whole.x1 + 2 and box.y1 <= whole.y1 + 2  # noqa: PT018


def no_overlap(axis) -> bool:
    """Return whether the labels of an axis do not overlap."""
    boxes = [label.get_window_extent() for label in axis.get_ticklabels() if label.get_text()]
    return not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


@pytest.mark.slow
def test_plot_heads_shows_each_head_on_one_scale():
    capture = planted()
    figure = plot_heads(capture, "a", tokens=list("abcde"))
    assert_saves(figure)
    panels = [axes for axes in figure.axes if axes.get_images() and axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels] == [f"head {n}" for n in range(6)]
    assert [axes.get_title(loc="right") for axes in panels][4:] == ["1.61 nats", "0.00 nats"]
    for n, axes in enumerate(panels):
        np.testing.assert_array_equal(image_of(axes), capture.weights["a"][0, n])
        assert axes.get_images()[0].get_clim() == (0, 1)
    assert texts(panels[4].xaxis) == texts(panels[0].yaxis) == list("abcde")
    assert figure.get_suptitle() == "a  (self)"
    assert len(figure.axes) == 2 * 4 + 1
    assert sum(axes.get_visible() for axes in figure.axes) == 7


def test_plot_heads_of_chosen_heads_and_of_one_entry():
    w = random_weights(2, 3, 4, 4)
    capture = Capture({"a": w}, {"a": "self"}, heads={"a": [5, 8, 9]})
    figure = plot_heads(capture, "a", heads=[9, 5], example=1)
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["head 9", "head 5"]
    np.testing.assert_array_equal(image_of(figure.axes[0]), w[1, 2])
    np.testing.assert_array_equal(image_of(figure.axes[1]), w[1, 0])
    assert figure.axes[0].get_images()[0].get_clim() == figure.axes[1].get_images()[0].get_clim()
    assert texts(figure.axes[0].xaxis) == []


def test_plot_map_has_the_tokens_on_both_axes():
    figure = plot_map(
        translation(), "layer_1/cross", 1, tokens=["▁i", "$a$", "\n"], key_tokens=SOURCE
    )
    assert_saves(figure)
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        file = io.BytesIO()
        figure.savefig(file, format=kind)
        assert file.getvalue().startswith(start)
    axes = figure.axes[0]
    assert texts(axes.yaxis) == ["i", "$a$", "⏎"]
    assert texts(axes.xaxis) == SOURCE
    np.testing.assert_array_equal(image_of(axes), translation().weights["layer_1/cross"][0, 1])
    assert axes.get_title(loc="left") == "layer_1/cross, head 1"
    assert texts(plot_map(planted(), "a", 0, tokens=list("abcde")).axes[0].xaxis) == list("abcde")
    assert texts(plot_map(planted(), "a", 0).axes[0].xaxis) == list("01234")


@pytest.mark.parametrize("length", [100, *slow([5, 30, 160, 400])])
def test_plot_map_can_be_read(length):
    tokens = [f"token {i}" for i in range(length)]
    w = random_weights(1, 1, length, length)
    figure = plot_map(Capture({"a": w}, {"a": "self"}), "a", 0, tokens=tokens)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert no_overlap(axes.yaxis)
    assert no_overlap(axes.xaxis)
    assert len(texts(axes.xaxis)) == (length if length <= 160 else -(-length // 3))
    size = axes.yaxis.get_ticklabels()[0].get_fontsize()
    assert size >= 5  # points
    assert max(figure.get_size_inches()) < 30


def test_rows_and_cells_have_the_labels_of_their_tokens():
    w = random_weights(1, 1, 2, 3)
    tokens = list("abcdef")
    pooled = Capture({"a": w}, {"a": "self"}, lengths={"a": (6, 6)})
    axes = plot_map(pooled, "a", 0, tokens=tokens).axes[0]
    assert (texts(axes.yaxis), texts(axes.xaxis)) == (["a", "d"], ["a", "c", "e"])
    some = Capture({"a": w}, {"a": "cross"}, rows={"a": [4, 1]}, lengths={"a": (6, 3)})
    axes = plot_map(some, "a", 0, tokens=tokens).axes[0]
    assert (texts(axes.yaxis), texts(axes.xaxis)) == (["e", "b"], ["0", "1", "2"])


def test_plot_alignment_means_over_layers_and_heads_and_rings_the_largest():
    capture = translation()
    figure = plot_alignment(capture, SOURCE, TARGET)
    assert_saves(figure)
    axes = figure.axes[0]
    mean = np.mean([capture.weights[f"layer_{i}/cross"][0, n] for i in (0, 1) for n in (0, 1)], 0)
    np.testing.assert_allclose(image_of(axes), mean)
    assert (texts(axes.yaxis), texts(axes.xaxis)) == (TARGET, SOURCE)
    assert axes.get_title(loc="left") == "2 layers of cross-attention, mean of 4 heads"
    rings = np.asarray(axes.collections[0].get_offsets())
    np.testing.assert_array_equal(rings, np.stack([mean.argmax(1), np.arange(3)], axis=1))

    one = plot_alignment(capture, SOURCE, TARGET, layer="layer_1/cross", head=1).axes[0]
    np.testing.assert_array_equal(image_of(one), capture.weights["layer_1/cross"][0, 1])
    assert one.get_title(loc="left") == "layer_1/cross, head 1"
    both = plot_alignment(capture, SOURCE, TARGET, head=0).axes[0]
    assert both.get_title(loc="left") == "2 layers of cross-attention, head 0, mean of 2 heads"


@pytest.mark.parametrize(
    ("layers", "heads", "T", "S"),
    [(1, 1, 1, 2), (2, 2, 5, 7), *slow([(2, 4, 5, 7), (3, 8, 40, 30)])],
)
def test_plot_cross_attention_of_any_size(layers, heads, T, S):
    weights = {f"cross {i}": random_weights(1, heads, T, S, seed=i) for i in range(layers)}
    capture = Capture({"self": random_weights(1, 2, T, T), **weights},
                      {"self": "causal", **dict.fromkeys(weights, "cross")})  # fmt: skip
    source, target = [str(i % 10) for i in range(S)], [f"▁word {i}" for i in range(T)]
    figure = plot_cross_attention(capture, source, target, title="$5 in words")
    assert_saves(figure)
    mean, *panels, bar = figure.axes
    assert figure.get_suptitle() == "$5 in words"
    assert bar.get_ylabel() == "attention weight"
    np.testing.assert_allclose(image_of(mean), np.mean(list(weights.values()), axis=(0, 1, 2)))
    assert (texts(mean.xaxis), texts(mean.yaxis)) == (source, [f"word {i}" for i in range(T)])
    assert no_overlap(mean.xaxis)
    assert no_overlap(mean.yaxis)
    assert [axes.get_title() for axes in panels] == [f"head {n + 1}" for n in range(heads)] * layers
    assert [axes.get_ylabel() for axes in panels[::heads]] == [
        f"layer {i + 1}" for i in range(layers)
    ]
    for number, axes in enumerate(panels):
        picture = weights[f"cross {number // heads}"][0, number % heads]
        np.testing.assert_array_equal(image_of(axes), picture)
        assert axes.get_images()[0].get_clim() == (0, 1)
        assert texts(axes.xaxis) == (source if S <= 10 else [])


def test_plot_cross_attention_of_layers_with_fewer_heads():
    weights = {"a": random_weights(2, 3, 2, 2), "b": random_weights(2, 1, 2, 2, seed=1)}
    capture = Capture(weights, dict.fromkeys(weights, "cross"))
    figure = plot_cross_attention(capture, ["1", "2"], ["one", "two"], example=1)
    assert_saves(figure)
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False] * 2 + [True]
    both = np.concatenate([weights["a"][1], weights["b"][1]])
    np.testing.assert_allclose(image_of(figure.axes[0]), both.mean(0))


def test_plot_model_shows_each_head_by_a_measure():
    capture = Capture(
        {"a": random_weights(1, 2, 4, 4), "b": random_weights(1, 1, 4, 4)},
        {"a": "self", "b": "self"},
        heads={"a": [0, 3], "b": [1]},
    )
    figure = plot_model(capture, "previous")
    assert_saves(figure)
    axes = figure.axes[0]
    shares = by_head(capture, "previous")
    table = np.array([[shares["a"][0], np.nan, shares["a"][1]], [np.nan, shares["b"][0], np.nan]])
    np.testing.assert_allclose(np.ma.filled(axes.get_images()[0].get_array(), np.nan), table)
    assert (texts(axes.xaxis), texts(axes.yaxis)) == (["0", "1", "3"], ["a", "b"])
    assert [text.get_text() for text in axes.texts] == [
        f"{x:.2f}" for x in (shares["a"][0], shares["a"][1], shares["b"][0])
    ]
    assert figure.axes[1].get_ylabel() == "share on the previous token"


def test_plot_model_of_costs_is_centred_on_0():
    figure = plot_model(Ablation(1.0, {"a": np.array([0.5, -1.0]), "b": np.array([0.25])}))
    assert figure.axes[0].get_images()[0].get_clim() == (-1, 1)
    assert figure.axes[1].get_ylabel() == "cost of switching it off"


def test_plot_model_leaves_out_what_is_not_known():
    axes = plot_model({"a": [np.nan, 2.5], "b": [np.nan, np.nan]}).axes[0]
    assert [text.get_text() for text in axes.texts] == ["2.50"]
    assert_saves(plot_model({"a": [np.nan]}))


def test_small_weights_show():
    """With 100 tokens, uniform weights are 0.01, which must differ visibly from 0."""
    w = np.zeros((1, 1, 100, 100))
    w[..., 0], w[..., 1:] = 0.01, 0.01
    w[0, 0, 0] = np.eye(100)[0]
    image = plot_heads(Capture({"a": w}, {"a": "self"}), "a").axes[0].get_images()[0]
    colours = image.to_rgba(np.array([[0.0, 0.01, 1.0]]))[0, :, :3]
    lightness = colours @ [0.2126, 0.7152, 0.0722]
    assert lightness[0] - lightness[1] > 0.03
    assert lightness[1] - lightness[2] > 0.5


def test_pyplot_knows_of_none_of_them():
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    plot_heads(planted(), "a"), plot_model(planted())
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda c: plot_heads(c, "b"), "`layer` must be one of 'layer_0/cross'"),
        (lambda c: plot_map(c, "layer_0/cross", 9), "`head` must be one of 0, 1 of 'layer_0/"),
        (lambda c: plot_map(c, "layer_0/cross", 0, example=2), r"`example` must be in \[0, 2\)"),
        (
            lambda c: plot_map(c, "layer_0/cross", 0, tokens=SOURCE),
            "`tokens` must be a list of 3 tokens, .* Received: 5",
        ),
        (
            lambda c: plot_map(c, "layer_0/cross", 0, tokens=TARGET, key_tokens="abcde"),
            "`key_tokens` must be a list of 5 tokens.*5 characters",
        ),
        (lambda c: plot_alignment(c, TARGET, TARGET), "`source` must be a list of 5.*Received: 3"),
        (lambda c: plot_alignment(c, SOURCE, SOURCE), "`target` must be a list of 3.*Received: 5"),
        (lambda c: plot_model(c, "size"), "`measure` must be one of"),
        (lambda c: plot_model({"a": [[1.0]]}), r"\(N,\) numbers.*'a': \(1, 1\)"),
        (lambda c: plot_model({}), "must hold"),
    ],
)
def test_what_cannot_be_drawn_says_so(draw, text):
    with pytest.raises(ValueError, match=text):
        draw(translation())


def test_an_alignment_needs_one_cross_attention():
    with pytest.raises(ValueError, match=r"a layer of cross-attention.*Received: 'a' \(self\)"):
        plot_alignment(planted(), SOURCE, TARGET)
    with pytest.raises(ValueError, match="a layer of cross-attention"):
        plot_cross_attention(planted(), SOURCE, TARGET)
    w = random_weights(1, 1, 3, 5)
    capture = Capture({"a": w, "b": w[..., :4]}, {"a": "cross", "b": "cross"})
    with pytest.raises(ValueError, match=r"`layer` must be given.*\(3, 5\), \(3, 4\)"):
        plot_alignment(capture, SOURCE, TARGET)


def test_plot_image_attention_shows_a_map_for_each_token():
    capture, image = described(), np.random.default_rng(0).random((4, 6, 3))
    figure = plot_image_attention(capture, None, image, tokens=["a", "$red", "circle"], example=1)
    assert_saves(figure)
    titles = [axes.get_title(loc="left") for axes in figure.axes[:4]]
    assert titles == ["image", "a", "$red", "circle"]
    np.testing.assert_array_equal(image_of(figure.axes[0]), image)
    mean = np.mean([capture.weights[name][1] for name in capture.names], axis=(0, 1))
    for axes, expected in zip(figure.axes[1:4], mean, strict=True):
        below, fog = axes.get_images()
        np.testing.assert_array_equal(below.get_array(), image)
        np.testing.assert_allclose(fog.get_array(), expected.reshape(2, 3))
        assert list(below.get_extent()) == list(fog.get_extent()) == [0, 6, 4, 0]
        assert fog.get_clim() == (0, mean.max())
        alphas = fog.cmap(fog.norm(expected))[:, 3]
        assert np.all(np.diff(alphas[np.argsort(expected)]) <= 0)  # more weight, less fog
        (frame,) = axes.patches
        row, column = divmod(expected.argmax(), 3)
        assert frame.get_bbox().bounds == (2 * column, 2 * row, 2, 2)
    assert figure.get_suptitle() == "2 layers of cross-attention, mean of 4 heads"


def test_plot_image_attention_shows_the_heads_of_a_class_token():
    weights = random_weights(1, 3, 5, 5)
    capture = Capture({"a": weights}, {"a": "self"})
    bytes_of_image = np.arange(16, dtype="uint8").reshape(4, 4, 1) * 17
    figure = plot_image_attention(capture, "a", bytes_of_image, query=0, heads=[2, 0])
    assert_saves(figure)
    panels = figure.axes[1:3]
    assert [axes.get_title(loc="left") for axes in panels] == ["head 2", "head 0"]
    for axes, head in zip(panels, (2, 0), strict=True):
        row = weights[0, head, 0, 1:]
        np.testing.assert_array_equal(axes.get_images()[1].get_array(), row.reshape(2, 2))
        assert axes.get_title(loc="right") == f"{row.sum():.0%} on it"
    np.testing.assert_allclose(image_of(figure.axes[0]), bytes_of_image[..., 0] / 255)
    assert figure.get_suptitle() == "a, query 0"


def test_plot_image_attention_takes_patches_that_are_not_square():
    capture = described(S=7)
    with pytest.raises(ValueError, match=r"grid=None, 7 keys, image.shape=\(4, 4\)"):
        plot_image_attention(capture, "layer_0/cross", np.zeros((4, 4)))
    figure = plot_image_attention(capture, "layer_0/cross", np.zeros((4, 4)), grid=(2, 3))
    assert [axes.get_title(loc="left") for axes in figure.axes[1:4]] == ["0", "1", "2"]
    weights = capture.weights["layer_0/cross"][0].mean(0)[0, 1:]
    fog = figure.axes[1].get_images()[1]
    np.testing.assert_allclose(fog.get_array(), weights.reshape(2, 3))
    with pytest.raises(ValueError, match=r"`grid` must .*grid=\(3, 3\), 7 keys"):
        plot_image_attention(capture, "layer_0/cross", np.zeros((4, 4)), grid=(3, 3))


def test_plot_image_attention_stretches_images_that_are_not_from_0_to_1():
    image = np.array([[-2.0, 0.0], [1.0, 2.0]])
    figure = plot_image_attention(described(S=4), None, image)
    np.testing.assert_allclose(image_of(figure.axes[0]), (image + 2) / 4)
    even = plot_image_attention(described(S=4), None, np.full((2, 2), 7.0))
    assert not image_of(even.axes[0]).any()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"image": np.zeros((4, 6, 2))}, r"`image` must be numbers .*\(4, 6, 2\)"),
        ({"image": np.zeros((0, 6))}, r"`image` must be numbers"),
        ({"tokens": ["a"]}, r"`tokens` must be a list of 3 tokens"),
        ({"layer": "none"}, r"`layer` must be one of"),
        ({"query": 0}, r"`query` must be .* one `layer`.*layer=None"),
        ({"query": 3, "layer": "layer_0/cross"}, r"`query` must be one of .*0, 1, 2.*query=3"),
        ({"heads": [2]}, r"`head` must be one of 0, 1"),
        ({"example": 2}, r"`example` must be in \[0, 2\)"),
    ],
)
def test_plot_image_attention_names_what_does_not_fit(options, text):
    arguments = {"layer": None, "image": np.zeros((4, 6)), **options}
    with pytest.raises(ValueError, match=text):
        plot_image_attention(described(), **arguments)


def test_plot_image_attention_needs_each_weight_by_itself():
    capture = Capture({"a": random_weights(1, 1, 2, 2)}, {"a": "cross"}, lengths={"a": (4, 4)})
    with pytest.raises(ValueError, match="'a' pooled to cells of"):
        plot_image_attention(capture, "a", np.zeros((4, 4)))
