"""The page in a browser; skipped without one, see `tests.browser`."""

import numpy as np
import pytest

from heed.inspect import Capture, Lens, circuit_scores, page
from tests.browser import accessibility_problems, luminance, rgb
from tests.inspect.test_page import random_weights, words

T = 12
COLOURS = {0: (233, 241, 250), 1: (8, 48, 107)}  # the ends of the blues on light paper


@pytest.fixture
def show(chromium, tmp_path):
    """Open a page from disk; check at the end that it loaded nothing and raised no error."""
    contexts, requests, complaints = [], [], []

    def open_it(capture, tokens, colours="light", size=(1360, 820), touch=False, **options):
        made = page(capture, tokens, tmp_path / "page.html", **options)
        context = chromium.new_context(
            color_scheme=colours,
            viewport={"width": size[0], "height": size[1]},
            has_touch=touch,
            is_mobile=touch,
        )
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(180_000)  # a machine may be slow
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(made.path.as_uri())
        tab.locator("#grid button[aria-selected=true]").wait_for()
        return tab

    yield open_it
    for context in contexts:
        context.close()
    assert requests == [(tmp_path / "page.html").as_uri()] * len(contexts)
    # Chromium warns about reading pixels, which these tests do.
    assert [text for text in complaints if "willReadFrequently" not in text] == []


def looking(shift, weight=0.9):
    """Return (1, 1, T, T): token i attends to token i + shift, and a little to all others."""
    w = np.full((T, T), (1 - weight) / (T - 1), "float32")
    w[np.arange(T), (np.arange(T) + shift) % T] = weight
    return w[None, None]


def planted():
    """Return layers a and b: a/0 attends 3 ahead, a/1 attends 5 ahead, b is causal and attends to the previous token.

    Thumbnails: the mean of a, a/0, a/1, the mean of b, b/0, b/1.
    """
    before = np.eye(T, k=-1, dtype="float32")
    before[0, 0] = 1
    a = np.concatenate([looking(3), looking(5)], axis=1)
    b = np.stack([before, np.eye(T, dtype="float32")])[None]
    return Capture({"a": a, "b": b}, {"a": "self", "b": "causal"})


def readout(tab):
    return tab.locator("#readout").inner_text().replace("\n", " ")


def on_screen(tab):
    """Wait until drawing has finished."""
    tab.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def ink(tab, side, i):
    """Return the opacity of the bar behind token i on one side of the lines, 0 to 255."""
    on_screen(tab)
    return tab.evaluate(
        """([side, i]) => {
          const canvas = document.querySelector("#lines canvas"), all = canvas.getBoundingClientRect();
          const box = document.querySelectorAll(`#${side} li`)[i].getBoundingClientRect();
          const at = side === "rows" ? box.right - 1 : box.left + 1, ratio = devicePixelRatio;
          const x = (at - all.left) * ratio, y = ((box.top + box.bottom) / 2 - all.top + 5) * ratio;
          return canvas.getContext("2d").getImageData(x, y, 1, 1).data[3];
        }""",
        [side, i],
    )


def colour_of(tab, share_x, share_y):
    """Return the colour of the matrix at a fraction of its width and height; None if transparent."""
    on_screen(tab)
    pixel = tab.evaluate(
        """([sx, sy]) => {
          const canvas = document.querySelector("#matrix canvas"), context = canvas.getContext("2d");
          const { width, height } = canvas, data = context.getImageData(0, 0, width, height).data;
          // The matrix is all that is opaque and at least five points wide and high.
          let left = width, top = height, right = 0, bottom = 0;
          const solid = (x, y) => data[4 * (y * width + x) + 3] === 255;
          for (let y = 0; y + 5 < height; y++) for (let x = 0; x + 5 < width; x++) {
            const corners = [[0, 0], [5, 0], [0, 5], [5, 5], [3, 2]];
            if (!corners.every(([dx, dy]) => solid(x + dx, y + dy))) continue;
            left = Math.min(left, x); right = Math.max(right, x + 6);
            top = Math.min(top, y); bottom = Math.max(bottom, y + 6);
          }
          const x = Math.floor(left + sx * (right - left)), y = Math.floor(top + sy * (bottom - top));
          return [...data.slice(4 * (y * width + x), 4 * (y * width + x) + 4)];
        }""",
        [share_x, share_y],
    )
    return tuple(pixel[:3]) if pixel[3] else None


@pytest.mark.parametrize("shift", [3, 5])
def test_a_query_shows_its_keys(show, shift):
    tab = show(planted(), words(T))
    tab.locator("#grid button").nth(1 + [3, 5].index(shift)).click()
    for i in (0, 7, 11):
        tab.locator("#rows li").nth(i).hover()
        target = (i + shift) % T
        assert readout(tab).startswith(f"w{i} attends to w{target} 0.90 ")
        strength = [ink(tab, "keys", j) for j in range(T)]
        assert int(np.argmax(strength)) == target
        assert strength[target] > 2 * sorted(strength)[-2]
        assert tab.locator("#rows li[aria-selected=true]").all_inner_texts() == [f"w{i}"]
    tab.mouse.move(5, 5)
    assert readout(tab).startswith("Point at a token")


def test_a_key_shows_its_queries(show):
    tab = show(planted(), words(T))
    tab.locator("#grid button").nth(1).click()
    tab.locator("#keys li").nth(4).hover()
    assert readout(tab).startswith("w4 is attended to by w1 0.90 ")
    assert int(np.argmax([ink(tab, "rows", i) for i in range(T)])) == 1


def test_the_matrix_is_the_weights(show):
    tab = show(planted(), words(T))
    tab.locator("#grid button").nth(1).click()
    row, column = 2.5 / T, 5.5 / T
    assert colour_of(tab, column, row) == pytest.approx(COLOURS[1], abs=26)  # 0.9, not 1
    assert colour_of(tab, row, column)[0] < COLOURS[0][0] - 8, "a weak weight is darker than none"
    tab.locator("#grid button").nth(4).click()  # b, head 0: causal
    assert colour_of(tab, 1.5 / T, 2.5 / T) == COLOURS[1]
    assert colour_of(tab, 0.5 / T, 2.5 / T) == COLOURS[0]
    assert colour_of(tab, 5.5 / T, 2.5 / T) is None, "later keys are left clear"


def test_pointing_into_the_matrix(show):
    tab = show(planted(), words(T))
    tab.locator("#grid button").nth(1).click()
    box = tab.locator("#matrix canvas").bounding_box()
    seen = set()
    for x in range(60, 420, 7):
        tab.mouse.move(box["x"] + x, box["y"] + 150)
        seen.add(readout(tab))
    rows = {text.split(" ")[0] for text in seen if "→" in text}
    assert len(rows) == 1, "one row along a line"
    i = int(rows.pop()[1:])
    assert any(
        text.startswith(f"w{i} → w{i + 3} 0.90 w{i} attends to w{i + 3} 0.90") for text in seen
    )


def test_filters_of_layer_head_and_kind(show):
    tab = show(planted(), words(T))
    heads = tab.locator("#grid button")
    name = tab.locator("#name")
    assert heads.count() == 6
    tab.locator("#layer").select_option("b")
    assert heads.count() == 3
    assert name.inner_text().startswith("b, mean of 2 heads")
    tab.locator("#head").select_option("1")
    assert heads.count() == 1
    assert name.inner_text().startswith("b, head 1")
    tab.locator("#kind").select_option("self-attention")
    assert heads.count() == 0
    assert tab.locator("#none").is_visible()
    tab.locator("#layer").select_option("all")
    assert heads.count() == 1
    assert name.inner_text().split() == ["a,", "head", "1", "self-attention"]


def test_the_threshold_hides_weak_weights(show):
    tab = show(planted(), words(T))
    tab.locator("#grid button").nth(1).click()
    tab.locator("#rows li").nth(1).hover()
    assert len(tab.locator("#readout .value").all()) == 8
    tab.locator("#threshold").fill("50")
    assert tab.locator("#hidden").inner_text() == "0.25"
    tab.locator("#rows li").nth(2).hover()
    assert readout(tab) == "w2 attends to w5 0.90"
    assert ink(tab, "keys", 4) == 0
    assert colour_of(tab, 9.5 / T, 7.5 / T) == COLOURS[0]
    tab.locator("#threshold").fill("100")
    tab.locator("#rows li").nth(3).hover()
    assert readout(tab) == "w3 attends to nothing"


def test_colours_for_each_head(show):
    capture = Capture({"a": np.concatenate([looking(3), looking(5, 0.3)], 1)}, {"a": "self"})
    tab = show(capture, words(T))
    tab.locator("#grid button").nth(2).click()
    assert tab.locator("#highest").inner_text() == "0.90"
    assert colour_of(tab, 5.5 / T, 0.5 / T) != COLOURS[1]
    tab.locator("#own").check()
    assert tab.locator("#highest").inner_text() == "0.30"
    assert colour_of(tab, 5.5 / T, 0.5 / T) == COLOURS[1]


def test_the_keyboard_reaches_everything(show):
    tab = show(planted(), words(T))
    press, focused = tab.keyboard.press, lambda: tab.evaluate("document.activeElement.textContent")
    tab.locator("#own").focus()
    press("Tab")
    assert "a, mean of 2 heads" in tab.evaluate("document.activeElement.ariaLabel")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert tab.evaluate(outline) == "solid"
    press("ArrowDown")
    press("ArrowRight")
    assert tab.locator("#name").inner_text().startswith("b, head 0")
    press("ArrowRight")
    press("ArrowRight")
    press("ArrowUp")
    assert tab.locator("#name").inner_text().startswith("a, head 1")
    press("Home")
    assert tab.locator("#name").inner_text().startswith("a, mean of 2 heads")
    press("ArrowRight")
    press("Tab")
    assert focused() == "w0"
    assert tab.evaluate(outline) == "solid"
    assert readout(tab).startswith("w0 attends to w3 0.90")
    press("ArrowDown")
    assert readout(tab).startswith("w1 attends to w4 0.90")
    press("ArrowRight")
    assert readout(tab).startswith("w1 is attended to by w10 0.90")
    press("End")
    assert readout(tab).startswith("w11 is attended to by w8 0.90")
    press("ArrowLeft")
    assert readout(tab).startswith("w11 attends to w2 0.90")
    press("Escape")
    assert readout(tab).startswith("Point at a token")
    press("Tab")
    press("Tab")
    assert tab.evaluate("document.activeElement.getAttribute('role')") == "application"
    press("ArrowRight")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowRight"):
        press(key)
    assert readout(tab).startswith("w1 → w4 0.90")
    press("Tab")
    assert tab.evaluate("document.activeElement.ariaLabel") == "Zoom in"


def test_text_shows_as_text(show):
    tokens = ["<script>window.hit = 1</script>", "<img src=x onerror=hit=1>", "", " ", "\n"]
    tokens += words(T - 5)
    tab = show(planted(), tokens, title="<i>title</i>")
    assert tab.evaluate("window.hit") is None
    assert tab.locator("#rows li").all_inner_texts()[:5] == [*tokens[:2], "␣", "␣", "⏎"]
    assert tab.locator("h1").inner_text() == "<i>title</i>"
    tab.locator("#grid button").nth(1).click()
    tab.locator("#rows li").nth(9).hover()
    assert readout(tab).startswith(f"w4 attends to {tokens[0]} 0.90")


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_light_and_dark_have_enough_contrast(show, colours):
    tab = show(planted(), words(T), colours)
    parts = ["h1", "#summary", "#readout", "#filters label", "#rows li", "#grid .layer", "#footer"]
    parts += ["#grid .head", "#rows li.on", "#keys li.on"]
    tab.locator("#rows li").nth(2).click()
    box = tab.locator("#matrix canvas").bounding_box()
    tab.mouse.move(box["x"] + 200, box["y"] + 200)  # marks a row and a key
    on_screen(tab)
    paper = rgb(tab.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert (luminance(paper) > 0.9) == (colours == "light")
    for part in parts:
        ink = rgb(tab.evaluate(f"getComputedStyle(document.querySelector('{part}')).color"))
        lighter, darker = sorted([luminance(ink), luminance(paper)], reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, part  # WCAG 2.2, level AA


def test_two_thousand_tokens_zoom(show):
    n = 2000
    w = np.zeros((1, 2, n, n), "float32")
    w[0, 0, np.arange(n), (np.arange(n) + 700) % n] = 1
    w[0, 1] = random_weights(n, n)
    tab = show(Capture({"long": w}, {"long": "self"}), words(n))
    tab.locator("#grid button").nth(1).click()
    assert tab.locator("#rows li").count() == n
    assert colour_of(tab, 0.501 + 0.35, 0.501) is not None
    tab.locator("#rows li").nth(1500).hover()
    assert readout(tab) == "w1500 attends to w200 1.00"
    box = tab.locator("#matrix canvas").bounding_box()
    x, y = box["x"] + 300, box["y"] + 250
    tab.mouse.move(x, y)
    before = readout(tab)
    for _ in range(14):
        tab.mouse.wheel(0, -80)
    on_screen(tab)
    columns = set()
    for step in range(30):
        tab.mouse.move(x + step, y)
        columns.add(readout(tab).split(" ")[2])
    assert 2 <= len(columns) <= 4, "cells of about 10 to 38 points"
    row, column = (int(word[1:]) for word in before.split(" ")[0:3:2])
    tab.mouse.move(x, y)
    now = [int(word[1:]) for word in readout(tab).split(" ")[0:3:2]]
    assert np.abs(np.subtract(now, [row, column])).max() <= 4, "it zooms in where the pointer is"
    tab.mouse.down()
    tab.mouse.move(x + 50, y + 40, steps=3)
    tab.mouse.up()
    tab.mouse.move(x + 50, y + 40)
    assert [int(word[1:]) for word in readout(tab).split(" ")[0:3:2]] == now, (
        "it moves with the pointer"
    )
    tab.locator("#zoom button", has_text="Fit").click()
    tab.mouse.move(x, y)
    assert readout(tab).split(" ")[0:3:2] == before.split(" ")[0:3:2]
    tab.locator("#matrix canvas").focus()
    wide = cell_width(tab, x, y)
    for _ in range(3):
        tab.keyboard.press("+")
    on_screen(tab)
    assert cell_width(tab, x, y) == pytest.approx(1.5**3 * wide, rel=0.2)
    tab.keyboard.press("0")
    on_screen(tab)
    assert cell_width(tab, x, y) == wide


def cell_width(tab, x, y):
    """Return the width of a key in the matrix, in CSS pixels."""
    columns = []
    for step in (0, 100):
        tab.mouse.move(x + step, y)
        columns.append(int(readout(tab).split(" ")[2][1:]))
    return 100 / (columns[1] - columns[0])


def test_a_few_rows_of_many_keys_are_high_enough_to_see(show):
    w = np.zeros((1, 1, 3, 3000), "float32")
    w[0, 0, range(3), [2700, 1500, 300]] = 1
    tab = show(Capture({"a": w}, {"a": "cross"}), words(3), key_tokens=words(3000, "k"))
    for row, column in enumerate([2700, 1500, 300]):
        colours = [colour_of(tab, (column + 0.5) / 3000, (y + 0.5) / 3) for y in range(3)]
        assert [colour == COLOURS[1] for colour in colours] == [y == row for y in range(3)]
    box = tab.locator("#matrix canvas").bounding_box()
    rows = set()
    for y in range(40, 130, 2):
        tab.mouse.move(box["x"] + 300, box["y"] + y)
        rows.add(readout(tab).split(" ")[0])
    assert {"w0", "w1", "w2"} <= rows


def test_a_strong_weight_among_thousands_is_seen(show):
    n = 3000
    w = np.zeros((1, 1, n, n), "float32")
    w[0, 0, 1501, 751] = 1
    tab = show(Capture({"long": w}, {"long": "self"}), words(n))
    strongest = tab.evaluate(
        """() => { const c = document.querySelector("#grid canvas");
          const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
          let least = 255, at = 0;
          for (let i = 0; i < d.length; i += 4) if (d[i] < least) { least = d[i]; at = i / 4; }
          return [least, at % c.width / c.width, Math.floor(at / c.width) / c.height]; }"""
    )
    assert strongest[0] == COLOURS[1][0]
    assert strongest[1:] == pytest.approx([751 / n, 1501 / n], abs=0.02)


def test_an_encoder_and_a_decoder_begin_with_the_cross_attention(show):
    cross = np.zeros((1, 1, 4, 3), "float32")
    cross[0, 0, range(4), [2, 0, 1, 1]] = 1
    arrays = {"encoder": random_weights(1, 1, 3, 3), "cross": cross}
    capture = Capture(arrays, {"encoder": "self", "cross": "cross"})
    tab = show(capture, words(4), key_tokens=words(3, "k"))
    assert tab.locator("#name").inner_text().startswith("cross, head 0")
    tab.locator("#rows li").nth(3).hover()
    assert readout(tab) == "w3 attends to k1 1.00"
    tab.locator("#grid button").nth(0).click()
    assert tab.locator("#rows li").all_inner_texts() == words(3, "k")


def test_labels_have_room_when_another_layer_is_chosen(show):
    arrays = {"encoder": random_weights(1, 1, 3, 3), "cross": random_weights(1, 1, 4, 3)}
    capture = Capture(arrays, {"encoder": "self", "cross": "cross"})
    tab = show(capture, {"encoder": ["a long token", "b", "c"], "cross": (words(4), words(3))})
    left_edge = """() => {
      const canvas = document.querySelector("#matrix canvas"), context = canvas.getContext("2d");
      const row = context.getImageData(0, 170, canvas.width, 1).data;
      let x = 0;
      while (x < canvas.width && [0, 5, 10, 20].some((dx) => row[4 * (x + dx) + 3] < 255)) x++;
      return x;
    }"""
    on_screen(tab)
    before = tab.evaluate(left_edge)
    assert before < 60
    tab.locator("#grid button").nth(0).click()
    on_screen(tab)
    assert before + 30 < tab.evaluate(left_edge) < 120


def test_rows_without_weights_and_some_rows_of_some_heads(show):
    w = random_weights(1, 2, 3, 10)
    w[0, 0, 1] = 0
    capture = Capture(
        {"a": w}, {"a": "self"}, heads={"a": [2, 9]}, rows={"a": [0, 4, 8]}, lengths={"a": (10, 10)}
    )
    tab = show(capture, words(10))
    assert tab.locator("#grid .head").all_inner_texts() == ["mean", "2", "9"]
    assert tab.locator("#rows li").all_inner_texts() == ["w0", "w4", "w8"]
    tab.locator("#grid button").nth(1).click()
    tab.locator("#rows li").nth(1).hover()
    assert readout(tab) == "w4 attends to nothing"


def test_a_narrow_window_and_a_notebook(show, chromium):
    tab = show(planted(), words(T), size=(400, 800))
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    made = page(planted(), words(T))
    notebook = chromium.new_page()
    complaints = []
    notebook.on("console", lambda message: complaints.append(message.text))
    notebook.set_content(f"<!DOCTYPE html><body>{made._repr_html_()}</body>")
    inside = notebook.frame_locator("iframe")
    inside.locator("#rows li").nth(2).hover()
    assert inside.locator("#readout").inner_text().replace("\n", " ").startswith("w2 attends to")
    notebook.close()
    assert complaints == []


def test_the_mean_of_heads_comes_first(show):
    tab = show(planted(), words(T))
    assert tab.locator("#name").inner_text().startswith("a, mean of 2 heads")
    assert tab.locator("#summary").inner_text() == "2 layers, 4 heads, 12 tokens"
    tab.locator("#rows li").nth(0).hover()
    assert readout(tab).startswith("w0 attends to w3 0.45 w5 0.45"), "half of 0.9, and a little"
    tab.locator("#head").select_option("mean")
    assert tab.locator("#grid button").count() == 2
    tab.locator("#head").select_option("all")
    one = Capture({"a": looking(3)}, {"a": "self"})
    assert show(one, words(T)).locator("#name").inner_text().startswith("a, head 0")


def test_a_phone(show):
    """Fingers find their targets, nothing is cut, and no space is left over."""
    tab = show(planted(), words(T), size=(390, 844), touch=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    for target in ("#zoom button", "#grid button", "#rows li", "#layer"):
        box = tab.locator(target).first.bounding_box()
        assert min(box["width"], box["height"]) >= 44, target
    grid, chosen = (
        tab.locator(part).bounding_box() for part in ("#overview", "[aria-selected=true]")
    )
    assert grid["y"] <= chosen["y"]
    assert chosen["y"] + chosen["height"] <= grid["y"] + grid["height"]
    hint = tab.locator("#readout")
    assert hint.inner_text() == "Tap a token to see what it attends to."
    assert hint.evaluate("e => e.scrollHeight <= e.clientHeight")
    tab.locator("#rows li").nth(2).tap()
    assert readout(tab).startswith("w2 attends to")
    on_screen(tab)
    zoom, foot = (tab.locator(part).bounding_box() for part in ("#zoom", "#footer"))
    assert 0 <= foot["y"] - zoom["y"] - zoom["height"] < 40


def test_colours_follow_the_theme(show):
    tab = show(planted(), words(T), "dark")
    tab.locator("#grid button").nth(4).click()
    assert colour_of(tab, 1.5 / T, 2.5 / T) == (238, 245, 253), "strong weights are light"
    tab.emulate_media(color_scheme="light")
    assert colour_of(tab, 1.5 / T, 2.5 / T) == COLOURS[1]


def with_tables():
    """Return the options of a page that add the tables of circuits and of the lens."""
    logits = np.random.default_rng(0).normal(size=(1, T, 30)) * 4
    places = {f"layer_{n}/output": logits for n in range(9)}
    scores = circuit_scores(planted(), np.arange(T) % 5)
    return {"scores": scores, "lens": Lens(places, tuple(range(T)))}


@pytest.mark.parametrize(("width", "touch"), [(1280, False), (390, True)])
def test_tables_below_the_heads(show, width, touch):
    """They scroll in their frames, which the keyboard reaches, and leave the heads their height."""
    tab = show(planted(), words(T), size=(width, 820), touch=touch, **with_tables())
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("#matrix").bounding_box()["height"] >= 400
    scores, lens = tab.get_by_role("region").filter(has=tab.locator("table")).all()
    assert scores.locator("tbody tr").count() == 4
    foot = tab.locator("#footer").bounding_box()
    assert foot["y"] + foot["height"] <= scores.bounding_box()["y"]
    tab.locator("#zoom button").last.focus()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Tab")
    assert lens.evaluate("e => e === document.activeElement")
    assert lens.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    assert lens.evaluate("e => e.scrollWidth > e.clientWidth")
    position = lens.locator("tbody th").first
    left = position.bounding_box()["x"]
    tab.keyboard.press("ArrowRight")
    for _ in range(15):  # frames of a smooth scroll
        on_screen(tab)
    assert lens.evaluate("e => e.scrollLeft") > 0
    assert position.bounding_box()["x"] == left, "the position of a row stays in sight"


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_everyone_can_use_the_page(show, colours):
    tab = show(planted(), words(T), colours, **with_tables())
    assert accessibility_problems(tab) == []
    assert tab.locator("main").count() == 1
    assert tab.get_by_role("button", name="Fit").count() == 1, "what is read is its name"
    assert tab.locator("#rows").get_attribute("lang") == "", "tokens are of no known language"
    assert tab.locator("h1").get_attribute("lang") == "en"
    tab = show(planted(), words(T), colours, title="uno → one")
    assert tab.locator("h1").get_attribute("lang") == ""
