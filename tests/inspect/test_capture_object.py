"""`Capture`: what it holds, what it tells, what it refuses, and its file (`test_npz` has damage of all kinds)."""

from __future__ import annotations

import numpy as np
import pytest

from heed.inspect import Capture, RowStatistics

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def random_weights(*shape: int, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).random(shape) ** 8
    return weights / weights.sum(-1, keepdims=True)


def planted() -> Capture:
    """Return heads that attend to the first, previous, same and next token, to all tokens, and to none."""
    T = 5
    even, nowhere = np.full((T, T), 1 / T), np.zeros((T, T))
    first = np.eye(T)[np.zeros(T, int)]
    previous, same, after = (np.eye(T, k=k) for k in (-1, 0, 1))
    weights = np.stack([first, previous, same, after, even, nowhere])[None]
    return Capture({"a": weights}, {"a": "self"})


def test_statistics_of_planted_heads():
    capture = planted()
    entropy = capture.entropy["a"][0]
    np.testing.assert_allclose(entropy[:, 2], [0, 0, 0, 0, np.log(5), 0], **EXACT)
    np.testing.assert_allclose(capture.distance["a"][0, :, 3], [3, 1, 0, 1, 1.4, 0], **EXACT)
    np.testing.assert_allclose(capture.on_token(0)["a"][0, :, 3], [1, 0, 0, 0, 0.2, 0], **EXACT)
    for offset, head in ((-1, 1), (0, 2), (1, 3)):
        shares = capture.on_offset(offset)["a"][0]
        assert shares[head, 1:4].tolist() == [1, 1, 1]
        assert shares[head].sum() == (5 if offset == 0 else 4)
        np.testing.assert_allclose(shares[4, 2], 0.2, **EXACT)
    assert capture.on_offset(-1)["a"][0, 4, 0] == 0  # no previous token
    assert not capture.on_offset(9)["a"].any()


def test_statistics_of_random_weights_by_hand():
    weights = random_weights(2, 3, 4, 6)
    capture = Capture({"a": weights}, {"a": "cross"})
    for b, n, i in np.ndindex(2, 3, 4):
        row = weights[b, n, i]
        entropy = -sum(w * np.log(w) for w in row if w > 0)
        distance = sum(w * abs(i - j) for j, w in enumerate(row))
        np.testing.assert_allclose(capture.entropy["a"][b, n, i], entropy, **EXACT)
        np.testing.assert_allclose(capture.distance["a"][b, n, i], distance, **EXACT)
        assert capture.on_token(5)["a"][b, n, i] == row[5]
        assert capture.on_offset(2)["a"][b, n, i] == row[i + 2]


def test_nan_stays_in_its_row():
    weights = random_weights(1, 1, 3, 3)
    weights[0, 0, 1] = np.nan
    entropy = Capture({"a": weights}, {"a": "self"}).entropy["a"][0, 0]
    assert np.isnan(entropy).tolist() == [False, True, False]


def test_it_is_a_collection_of_names_and_never_changes():
    given = random_weights(1, 2, 3, 3)
    capture = Capture({"a": given, "b": given}, {"b": "cross", "a": "self"})
    assert (len(capture), list(capture)) == (2, ["a", "b"])
    assert "b" in capture
    assert "c" not in capture
    with pytest.raises(ValueError, match="read-only"):
        capture.weights["a"][0] = 0
    with pytest.raises(TypeError):
        capture.weights["a"] = given  # type: ignore[index]
    given[0] = 1  # the caller's array stays writable


def test_the_repr_describes_each_layer():
    w = random_weights(1, 2, 3, 4)
    capture = Capture(
        {"whole": w, "some": w, "pooled": w},
        {"whole": "self", "some": "cross", "pooled": "causal"},
        rows={"some": [5, 0, 1]},
        lengths={"some": (9, 4), "pooled": (6, 8)},
    )
    assert repr(capture).splitlines() == [
        "<Capture of 3 layers",
        "  whole: self, 1 x 2 heads x 3 x 4",
        "  some: cross, 1 x 2 heads x 9 x 4, 3 rows of it",
        "  pooled: causal, 1 x 2 heads x 6 x 8, pooled to 3 x 4>",
    ]
    assert capture.cells["pooled"] == (2, 2)
    assert capture.rows["pooled"] == (0, 2, 4)
    assert [capture.is_whole(name) for name in capture] == [True, False, False]


def test_a_layer_with_too_few_keys_is_left_out_of_on_token():
    short, long = random_weights(1, 1, 3, 2), random_weights(1, 1, 3, 5)
    capture = Capture({"short": short, "long": long}, {"short": "cross", "long": "cross"})
    assert list(capture.on_token(4)) == ["long"]
    with pytest.raises(ValueError, match=r"`token` must be in \[0, 5\). Received: token=5"):
        capture.on_token(5)


def test_errors_for_unknown_layers_and_heads_list_the_known_ones():
    w = random_weights(1, 2, 3, 3)
    capture = Capture({"a": w, "b": w}, {"a": "self", "b": "self"}, heads={"a": [4, 7]})
    assert capture.head_index("a", 7) == 1
    with pytest.raises(ValueError, match=r"`layer` must .*layer='c'"):
        capture.head_index("c", 0)
    with pytest.raises(ValueError, match=r"`head` must .*of 'a'.*head=0"):
        capture.head_index("a", 0)


W = random_weights(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"weights": {}, "kinds": {}}, "at least one layer"),
        ({"weights": {"a": W[0]}}, r"arrays \(B, N, T, S\).*\(2, 3, 4\) for 'a'"),
        ({"weights": {"a": W.astype(int)}}, "floating-point.*int64"),
        ({"kinds": {}}, r"`kinds` must name the layers.*\[\], weights of \['a'\]"),
        ({"kinds": {"a": "both"}}, "`kinds` must be one of.*'both' for 'a'"),
        ({"heads": {"b": [1]}}, r"`heads` must name layers.*\['b'\]"),
        ({"heads": {"a": [1]}}, "must be 2 different integers .* of the heads of 'a'"),
        ({"heads": {"a": [1, 1]}}, "must be 2 different integers .* of the heads of 'a'"),
        ({"rows": {"a": [0, 1, 3]}}, r"`rows` must be in \[0, 3\)"),
        ({"rows": {"a": [0, -1, 2]}}, "must be 3 different integers"),
        ({"lengths": {"a": (2, 4)}}, r"\(2, 4\) for 'a'.*3 x 4"),
        ({"lengths": {"a": (4, 4)}}, r"\(4, 4\) for 'a'.*3 x 4"),
        ({"starts": {"a": [1, 2]}}, r"`starts` must be .*\[1, 2\]"),
        ({"starts": {"a": 0.5}}, r"`starts` must be .*0.5"),
        (
            {"statistics": {"a": RowStatistics(W[..., 0], W[..., :2, 0])}},
            r"\(B, N, T\) = \(1, 2, 3\). Received: distance of shape \(1, 2, 2\)",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        Capture(**{"weights": {"a": W}, "kinds": {"a": "self"}, **arguments})


@pytest.mark.parametrize("token", [0.0, True, "a"])
def test_tokens_and_offsets_are_integers(token):
    with pytest.raises(TypeError, match="`token` must be an integer"):
        planted().on_token(token)
    with pytest.raises(TypeError, match="`offset` must be an integer"):
        planted().on_offset(token)


def test_a_pooled_picture_refuses_statistics_it_cannot_compute():
    capture = Capture({"a": W}, {"a": "self"}, lengths={"a": (6, 4)})
    with pytest.raises(ValueError, match=r"of 'a'.*a picture that is pooled"):
        _ = capture.entropy


# The file


def test_a_file_holds_all_of_it(tmp_path):
    path = tmp_path / "no suffix"
    whole, some, pooled = random_weights(2, 3, 5, 4), random_weights(2, 1, 2, 4), W
    rows = random_weights(2, 1, 9, 4)
    statistics = RowStatistics(rows[..., 0], rows[..., 1], {7: rows[..., 2]}, {-1: rows[..., 3]})
    capture = Capture(
        {"é/whole": whole.astype("float32"), "some": some, "pooled": pooled},
        {"é/whole": "causal", "some": "cross", "pooled": "self"},
        heads={"some": [3]},
        rows={"some": [8, 1]},
        lengths={"some": (9, 4), "pooled": (3, 8)},
        starts={"some": 3, "é/whole": [2, 0]},
        statistics={"some": statistics},
        outputs="not saved",
    )
    capture.save(path)
    assert path.exists()
    loaded = Capture.load(path)
    assert repr(loaded) == repr(capture)
    for part in ("names", "kinds", "heads", "rows", "lengths", "cells"):
        assert getattr(loaded, part) == getattr(capture, part), part
    for name in capture:
        np.testing.assert_array_equal(loaded.weights[name], capture.weights[name])
        np.testing.assert_array_equal(loaded.starts[name], capture.starts[name])
        assert loaded.weights[name].dtype == capture.weights[name].dtype
    assert loaded._layers["some"].statistics.tokens.keys() == {7}
    np.testing.assert_array_equal(loaded._layers["some"].statistics.tokens[7], rows[..., 2])
    np.testing.assert_array_equal(loaded._layers["some"].statistics.offsets[-1], rows[..., 3])
    np.testing.assert_array_equal(
        *(x._layers["é/whole"].statistics.entropy for x in (loaded, capture))
    )
    assert loaded.outputs is None


def test_a_file_of_another_format_is_refused(tmp_path):
    text, other, array, cut = (
        tmp_path / name for name in ("text", "other.npz", "array.npy", "cut.npz")
    )
    text.write_text("hello")
    planted().save(cut)
    cut.write_bytes(cut.read_bytes()[:-9])
    np.savez(other, weights=W)
    np.save(array, W)
    for path in (text, other, array, cut):
        with pytest.raises(ValueError, match=r"a file that Capture.save wrote"):
            Capture.load(path)
    with pytest.raises(FileNotFoundError):
        Capture.load(tmp_path / "nothing")


def resaved(path, changed):
    """Save a capture with some arrays replaced, or removed for None, and valid checksums."""
    planted().save(path)
    with np.load(path) as file:
        entries = {name: file[name] for name in file.files} | changed
    np.savez(path, **{name: x for name, x in entries.items() if x is not None})


@pytest.mark.parametrize(
    "changed",
    [
        {"0/heads": np.array([np.inf])},
        {"0/heads": np.array(0)},
        {"0/kind": np.array("none")},
        {"0/lengths": np.array([1])},
        {"0/lengths": np.array([np.inf, 2])},
        {"0/lengths": np.array([10**15, 10**15]), "0/rows": np.arange(4)},
        {"names": np.array(0)},
        {"0/entropy": np.array("x")},
        {"0/tokens/x": np.zeros(1)},
        *({name: None} for name in ("0/weights", "0/entropy", "names")),
        {"format": np.array("heed capture 9")},
    ],
)
def test_forged_contents_are_refused(tmp_path, changed):
    resaved(tmp_path / "capture.npz", changed)
    text = "its format is 'heed capture 9'" if "format" in changed else r"that Capture.save wrote"
    with pytest.raises(ValueError, match=text):
        Capture.load(tmp_path / "capture.npz")
