"""The server's page in a browser; skipped without one, see `tests.browser`."""

import threading

import pytest

from heed.errors import TaskError
from heed.seq2seq.translating.translator import Translation
from tests.browser import accessibility_problems, luminance, playwright, rgb


@pytest.fixture
def show(chromium):
    """Open the page of a server; check at the end that it asked only this server and raised no error."""
    contexts, requests, complaints = [], [], []

    def open_it(server, colours="light", size=(1280, 757), touch=False):
        context = chromium.new_context(
            color_scheme=colours,
            viewport={"width": size[0], "height": size[1]},
            has_touch=touch,
            is_mobile=touch,
        )
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(60_000)  # a machine may stand still for a while
        tab.on("request", lambda request: requests.append((server.url, request.url)))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(server.url)
        return tab

    yield open_it
    for context in contexts:
        context.close()
    assert all(url in (own, f"{own}translate") for own, url in requests)
    ignored = ("willReadFrequently", "the server responded with a status of 422", "ERR_CONNECTION")
    assert [text for text in complaints if not any(part in text for part in ignored)] == []


def type_in(tab, text):
    tab.locator("#text").press_sequentially(text, delay=5)
    whole = tab.locator("#text").input_value()
    playwright.expect(tab.locator("#answer")).to_have_attribute("data-of", whole, timeout=60_000)


def test_the_translation_comes_as_one_types(show, live, translator):
    tab = show(live())
    assert tab.evaluate("document.activeElement.id") == "text"
    type_in(tab, "12")
    first = tab.locator("#translations li")
    assert first.inner_text() == translator(["12"])[0]
    type_in(tab, "34")
    assert first.inner_text() == translator(["1234"])[0]
    assert tab.locator("#keys li").all_inner_texts() == ["en", *"1234"]
    tab.locator("#text").fill("")
    first.wait_for(state="detached")
    assert tab.locator("#grid").count() == 0


def test_words_heads_and_layers(show, live):
    tab = show(live())
    type_in(tab, "123")
    assert tab.locator("#name").inner_text().startswith("cross 1, mean of 2 heads")
    written = tab.locator("#rows li").first.inner_text()
    tab.locator("#rows li").first.hover()
    assert tab.locator("#readout").inner_text().startswith(f"{written} attends to")
    tab.locator("#keys li").nth(2).hover()
    assert tab.locator("#readout").inner_text().startswith("2 is attended to by")
    tab.locator("#grid button").nth(2).click()
    assert tab.locator("#name").inner_text().startswith("encoder 1, head 1")
    tab.locator("#threshold").fill("40")
    tab.locator("#layer").select_option("encoder 1")
    type_in(tab, "4")
    assert tab.locator("#keys li").all_inner_texts() == ["en", *"1234"]
    assert tab.locator("#name").inner_text().startswith("encoder 1, head 1"), "it stays chosen"
    assert tab.locator("#threshold").input_value() == "40"
    assert tab.locator("#layer option:checked").inner_text() == "encoder 1"
    assert tab.locator("#grid button").count() == 3


def test_the_keyboard_reaches_everything(show, live):
    tab = show(live())
    type_in(tab, "123")
    seen = set()
    for _ in range(18):
        tab.keyboard.press("Tab")
        seen.add(tab.evaluate("document.activeElement.id || document.activeElement.ariaLabel"
                              " || document.activeElement.parentElement.id"))  # fmt: skip
    wanted = {"examples", "copy", "translations", "layer", "head", "threshold", "own", "rows"}
    assert wanted <= seen, seen
    assert "cross 1, mean of 2 heads, cross-attention" in seen


def test_an_error_appears_and_goes_away(show, live):
    tab = show(live())
    type_in(tab, "12")
    tab.locator("#keys li").first.wait_for()
    type_in(tab, "x")
    problem = tab.locator("#problem")
    assert "must be digits" in problem.inner_text()
    assert tab.locator("#translations li").count() == tab.locator("#grid").count() == 0
    tab.keyboard.press("Backspace")
    tab.locator("#translations li").wait_for()
    assert not problem.is_visible()


def test_a_stopped_server_is_reported(show, live):
    server = live()
    tab = show(server)
    server.join()
    type_in(tab, "1")
    assert tab.locator("#problem").inner_text() == "The server is not responding."


def test_a_late_answer_is_dropped(show, live, gate, translator):
    server = live()
    tab = show(server)
    tab.locator("#text").press_sequentially("1")
    gate.wait_for_a_batch()
    tab.locator("#text").press_sequentially("2")
    tab.wait_for_timeout(400)  # its request is under way, too
    gate.open()
    playwright.expect(tab.locator("#answer")).to_have_attribute("data-of", "12", timeout=60_000)
    assert tab.locator("#translations li").inner_text() == translator(["12"])[0]
    assert tab.locator("#keys li").all_inner_texts() == ["en", "1", "2"]


def test_runs_and_languages(show, live, translator):
    tab = show(live({"one": translator, "<b>two</b>": translator}))
    assert tab.locator("#run option").all_inner_texts() == ["one", "<b>two</b>"]
    type_in(tab, "12")
    tab.locator("#run").select_option("<b>two</b>")
    tab.locator("#language").select_option("de")
    tab.locator("#keys li", has_text="de").wait_for()
    assert tab.locator("#translations li").inner_text() == translator(["12"], "de")[0]


def test_alternatives(show, live, translator):
    tab = show(live())
    type_in(tab, "123")
    tab.locator("#beams").select_option("4")
    items = tab.locator("#translations li")
    items.nth(3).wait_for()
    assert items.nth(0).get_attribute("aria-selected") == "true"
    found = items.all_inner_texts()
    assert len(set(found)) == 4
    first = tab.locator("#rows li").all_inner_texts()
    items.nth(2).click()
    assert items.nth(2).get_attribute("aria-selected") == "true"
    playwright.expect(tab.locator("#rows li")).not_to_have_text(first)
    assert items.nth(2).get_attribute("title").startswith("score -")
    items.nth(2).focus()
    tab.keyboard.press("Home")
    assert tab.evaluate("document.activeElement.textContent") == found[0]
    playwright.expect(tab.locator("#rows li")).to_have_text(first)
    type_in(tab, "4")
    assert tab.locator("#translations li").count() == 4


def test_markup_is_text(show, live, translator, monkeypatch):
    bad = "<img src=x onerror='window.hit=1'>\x07<script>window.hit=2</script>"
    monkeypatch.setattr(translator.task, "decode", lambda rows: [bad for _ in rows])
    monkeypatch.setattr(translator.task, "target_labels", lambda ids: [bad for _ in ids])
    tab = show(live({"<script>window.hit=3</script>": translator}))
    type_in(tab, "1")
    assert tab.locator("#translations li").text_content() == bad
    assert bad in tab.locator("#rows li").first.text_content()
    tab.locator("#text").fill(bad)
    tab.locator("#problem:visible").wait_for()
    assert "<img" in tab.locator("#problem").inner_text()
    assert tab.evaluate("window.hit") is None
    assert tab.locator("img").count() == 0


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_light_and_dark_can_be_read(show, live, colours):
    tab = show(live(), colours)
    type_in(tab, "12")

    def contrast(part, behind):
        style = "getComputedStyle(document.querySelector('{}')).{}"
        ink = rgb(tab.evaluate(style.format(part, "color")))
        paper = rgb(tab.evaluate(style.format(behind, "backgroundColor")))
        assert (luminance(paper) > 0.8) == (colours == "light")
        lighter, darker = sorted([luminance(ink), luminance(paper)], reverse=True)
        return (lighter + 0.05) / (darker + 0.05)

    for part, behind in (
        ("#text", ".card"),
        ("#translations li", ".card + .card"),
        ("#state", ".card + .card"),
        ("#problem", ".card + .card"),
        (".title", ".card"),
        ("#purpose", ":root"),
        ("#choices label", ":root"),
        ("#examples button", "#examples button"),
        ("#copy", "#copy"),
    ):
        assert contrast(part, behind) >= 4.5, part  # WCAG 2.2, level AA


def test_an_empty_page_says_what_it_is_for(show, live, translator):
    tab = show(live())
    assert tab.locator("h1").inner_text() == "numbers"
    assert tab.title() == "numbers · heed"
    assert tab.locator("#purpose").inner_text() == (
        "Writes numbers from 0 to 999,999 in words. Languages: English, German. Trained for 12 steps."
    )
    assert tab.locator("#welcome").is_visible()
    assert not tab.locator("#copy").is_visible()
    assert tab.evaluate("document.documentElement.scrollHeight") <= 757, "it fits the window"
    tab.locator("#examples button", has_text="1,234").click()
    tab.locator("#grid").wait_for()
    assert tab.locator("#text").input_value() == "1,234"
    assert tab.locator("#translations li").inner_text() == translator(["1,234"])[0]
    assert not tab.locator("#welcome").is_visible()
    assert tab.locator("#state").inner_text().startswith("Translated in ")
    footer = tab.locator("#footer").bounding_box()
    assert footer["y"] + footer["height"] <= 757


def test_words_appear_as_they_come(show, live, translator, monkeypatch):
    held = [threading.Event() for _ in range(3)]

    def stream_row(row, **_):
        for event, piece in zip(held, ("eins", " zwei", " drei"), strict=True):
            assert event.wait(60)
            yield piece
        return Translation("eins zwei drei", [*translator.task.subwords.encode(["one"])[0]])

    monkeypatch.setattr(translator, "stream_row", stream_row)
    tab = show(live())
    tab.locator("#text").fill("123")
    first = tab.locator("#translations li")
    busy = tab.locator("#answer")
    for event, text in zip(held, ("eins", "eins zwei", "eins zwei drei"), strict=True):
        event.set()
        playwright.expect(first).to_have_text(text, timeout=60_000)
        if event is not held[-1]:
            assert busy.get_attribute("aria-busy") == "true", "readers wait for the whole"
    playwright.expect(busy).to_have_attribute("aria-busy", "false", timeout=60_000)


def test_copying(show, live, translator):
    tab = show(live())
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    type_in(tab, "123")
    tab.locator("#copy").click()
    playwright.expect(tab.locator("#said")).to_have_text("Copied")
    assert tab.evaluate("navigator.clipboard.readText()") == translator(["123"])[0]
    playwright.expect(tab.locator("#copy")).to_have_text("Copy")


def test_a_phone(show, live):
    tab = show(live(), size=(390, 844), touch=True)
    for target in ("#examples button", "#language", "#beams"):
        assert tab.locator(target).first.bounding_box()["height"] >= 44, target
    tab.locator("#examples button").nth(2).tap()
    tab.locator("#grid").wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.locator("#copy").bounding_box()["height"] >= 44
    assert tab.evaluate("document.activeElement.id") != "text", "no keyboard covers the result"


def put(tab, text):
    """As a paste."""
    tab.locator("#text").fill(text)
    playwright.expect(tab.locator("#answer")).to_have_attribute("data-of", text, timeout=60_000)


def test_each_line_is_translated(show, live, translator):
    tab = show(live())
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    put(tab, " 12\n\n345\n\u202867\n")
    items = tab.locator("#translations li")
    expected = translator(["12", "345", "67"])
    assert items.all_inner_texts() == expected
    assert items.nth(1).get_attribute("class") == "after-gap"
    assert tab.locator("#state").inner_text().startswith("3 texts translated in ")
    playwright.expect(tab.locator("#keys li")).to_have_text(["en", *"12"])
    items.nth(1).click()
    playwright.expect(tab.locator("#keys li")).to_have_text(["en", *"345"])
    tab.locator("#copy").click()
    playwright.expect(tab.locator("#said")).to_have_text("Copied")
    copied = tab.evaluate("navigator.clipboard.readText()")
    assert copied == f"{expected[0]}\n\n{expected[1]}\n\n{expected[2]}"
    put(tab, "12")
    assert items.all_inner_texts() == expected[:1]
    assert tab.locator("#state").inner_text().startswith("Translated in ")


def test_a_line_that_is_refused_stops_no_other(show, live, translator):
    tab = show(live())
    put(tab, "12\nx\n345")
    items = tab.locator("#translations li")
    assert items.nth(1).inner_text().startswith("Line 2: a number must be digits")
    assert [items.nth(i).inner_text() for i in (0, 2)] == translator(["12", "345"])
    assert not tab.locator("#problem").is_visible()


def test_a_long_paste_is_not_cut(show, live, translator, monkeypatch):
    """By sentences, and these by the most characters; a line that the model refuses, by its sentences."""
    asked = []
    encode = translator.task.encode

    def note(line, language=None):
        asked.append(line)
        if len(line) > 20:
            raise TaskError("too long")
        return encode("".join(letter for letter in line if letter.isdigit())[:5], language)

    monkeypatch.setattr(translator.task, "encode", note)
    tab = show(live(max_characters=40, max_body=400))
    refused = "Twelve is 12. Thirteen is 13."
    paste = "One is 1 and two is 2. " * 20 + "5" * 50
    put(tab, refused)
    assert tab.locator("#translations li").count() == 2
    put(tab, f"{refused}\n{paste}")
    assert tab.locator("#translations li").count() == 2 + 20 + 2
    assert {"Twelve is 12.", "Thirteen is 13.", "5" * 40, "5" * 10} <= set(asked)
    assert tab.locator("#text").get_attribute("maxlength") is None
    put(tab, "\n".join(map(str, range(203))))
    assert "the first 200 of 203" in tab.locator("#state").inner_text()
    assert tab.locator("#translations li").count() == 200


def test_a_reload_keeps_the_choices(show, live, translator):
    tab = show(live({"one": translator, "two": translator}))
    tab.locator("#run").select_option("two")
    assert tab.url.endswith("#run=two")
    tab.locator("#language").select_option("de")
    tab.locator("#beams").select_option("4")
    for reload in (tab.reload, lambda: tab.goto(tab.url)):
        reload()
        chosen = [tab.locator(f"#{name}").input_value() for name in ("run", "language", "beams")]
        assert chosen == ["two", "de", "4"]
    assert tab.locator("h1").inner_text() == "two"
    tab.evaluate("location.hash = '#run=gone&language=xx'")
    playwright.expect(tab.locator("h1")).to_have_text("one")


def test_the_language_of_a_translation(show, live, translator, monkeypatch):
    tab = show(live())
    put(tab, "12")
    answer = tab.locator("#translations")
    assert answer.get_attribute("lang") == "en"
    tab.locator("#language").select_option("de")
    playwright.expect(answer).to_have_attribute("lang", "de")
    assert tab.locator("#text").get_attribute("lang") == ""
    monkeypatch.setattr(translator.task, "languages", ("pt_BR", "Klingon"))
    monkeypatch.setattr(translator.task, "encode", lambda *_: [7, 5])
    tab = show(live())
    put(tab, "12")
    assert tab.locator("#translations").get_attribute("lang") == "pt-BR"
    tab.locator("#language").select_option("Klingon")
    playwright.expect(tab.locator("#translations")).to_have_attribute("lang", "")


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_everyone_can_use_the_page(show, live, colours):
    tab = show(live(), colours)
    assert accessibility_problems(tab) == []
    for text in ("12", "12\nx\n7"):
        put(tab, text)
        tab.locator("#grid").wait_for()
        assert accessibility_problems(tab) == []
    put(tab, "x")
    assert accessibility_problems(tab) == []
    assert tab.locator("main").count() == 1
