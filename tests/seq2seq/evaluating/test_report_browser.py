"""The report in a browser; skipped without one, see `tests.browser`."""

import dataclasses

import pytest

from heed.seq2seq import Compared, Translator, write_report
from tests.browser import accessibility_problems, luminance, rgb
from tests.seq2seq.evaluating.test_report import PAIRS, evaluation_of


@pytest.fixture
def show(chromium, finished_run, tmp_path):
    """Open a report from disk; at the end, nothing was asked for and nothing went wrong."""
    contexts, requests, complaints = [], [], []
    path = tmp_path / "report.html"

    def open_it(evaluation, other=None, colours="light"):
        write_report(path, Translator(finished_run), evaluation, other)
        context = chromium.new_context(
            color_scheme=colours, viewport={"width": 1240, "height": 900}
        )
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(180_000)  # a machine may stand still for a while
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: complaints.append(dialog.message))
        tab.goto(path.as_uri())
        tab.locator("#spread svg").wait_for()
        return tab

    yield open_it
    for context in contexts:
        context.close()
    assert requests == [path.as_uri()] * len(contexts)
    assert [text for text in complaints if "willReadFrequently" not in text] == []


def test_figures_and_sentences(show):
    figures = {"bleu": 41.26, "chrf": 60.5, "signatures": {"BLEU": "nrefs:1|version:2"}}
    tab = show(evaluation_of(*PAIRS, **figures))
    cards = tab.locator("#figures > div").all_inner_texts()
    assert [card.split("\n") for card in cards[:2]] == [
        ["right to the letter", "40.0 %", "2 of 5"],
        ["BLEU", "41.3", "nrefs:1|version:2"],
    ]
    bars = tab.locator("#spread g.bin")
    assert bars.count() == 20
    assert bars.nth(0).locator("title").inner_html() == (
        "chrF 0 to 5: 1 sentence, 0 right to the letter"
    )
    room = bars.nth(19).locator("rect.room").bounding_box()
    whole, right = (
        bars.nth(19).locator(f"rect.{kind}").bounding_box() for kind in ("all", "right")
    )
    assert whole["height"] == pytest.approx(room["height"], abs=0.5)
    assert right["height"] == pytest.approx(room["height"] * 2 / 3, abs=0.5)
    worst = tab.locator("#worst article")
    assert worst.locator(".score").first.inner_text() == "0.0"
    assert worst.first.locator("dd").all_inner_texts() == ["2", "nothing", "seven"]
    assert worst.nth(1).locator("dd").all_inner_texts() == ["1", "one two", "one two three"]
    assert worst.nth(1).locator("mark").all_inner_texts() == ["three"]
    best = tab.locator("#best article")
    assert best.first.locator("dt").all_inner_texts() == ["source", "translation, reference"]
    assert best.locator("mark").count() == 0
    assert tab.locator("#all-right").is_hidden()
    assert tab.locator("#legend").is_hidden()


def test_attention_opens_switches_and_closes(show):
    tab = show(evaluation_of(*PAIRS))
    assert tab.locator("#grid").count() == 0
    first, second = (tab.locator("#worst article").nth(i) for i in (0, 1))
    first.get_by_role("button", name="Show attention").click()
    first.locator("#grid button[aria-selected=true]").wait_for()
    assert tab.locator("#name").inner_text().startswith("cross 1, mean of 2 heads")
    assert tab.locator("#keys li").all_inner_texts() == ["en", "1", "2"]
    tab.locator("#layer").select_option("encoder 1")
    assert tab.locator("#name").inner_text().startswith("encoder 1, mean of 2 heads")
    tab.locator("#grid button").nth(2).click()
    assert tab.locator("#name").inner_text().startswith("encoder 1, head 1")
    tab.locator("#rows li").nth(1).hover()
    assert tab.locator("#readout").inner_text().startswith("1 attends to")
    button = second.get_by_role("button", name="Show attention")
    button.click()
    second.locator("#grid button[aria-selected=true]").wait_for()
    assert tab.locator("#grid").count() == 1, "one at a time"
    assert tab.locator("#name").inner_text().startswith("encoder 1, head 1"), "it stays chosen"
    assert tab.locator("[aria-expanded=true]").count() == 1
    button.click()
    tab.locator("#grid").wait_for(state="detached")
    assert tab.locator("[aria-expanded=true]").count() == 0


def test_markup_is_displayed_and_never_run(show):
    nasty = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    tab = show(evaluation_of((nasty, "<b>right</b> {{style}}"), (nasty, nasty)))
    shown = tab.locator("#worst dd").all_inner_texts()
    assert shown == ["0", nasty, "<b>right</b> {{style}}"]
    assert tab.locator("#best dd").all_inner_texts() == ["1", nasty]
    assert tab.locator("article :is(img, b, script)").count() == 0


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_two_runs_and_contrast(show, colours):
    other = Compared(
        "<i>other</i>",
        evaluation_of(*[(reference, reference) for _, reference in PAIRS]),
        ["BLEU 1.0 and 2.0: +1.0 (p = 0.500)"],
    )
    tab = show(evaluation_of(*PAIRS), other, colours)
    assert tab.locator("#legend .run").nth(1).inner_text() == "<i>other</i>"
    assert tab.locator("#figures .value").all_inner_texts()[:2] == ["40.0 %", "100.0 %"]
    assert tab.locator("#notes p").all_inner_texts() == other.comparisons
    worst = tab.locator("#worst article").first
    assert worst.locator(".score").all_inner_texts() == ["0.0", "100.0"]
    assert worst.locator("dd").all_inner_texts() == ["2", "nothing", "seven", "seven"]
    assert tab.locator("#spread path.other").count() == 1
    style = "(name) => getComputedStyle(document.querySelector(name)).color"
    paper = tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    for name in ("article dd", "article dt", ".score.first", ".score.second", "#notes p"):
        light = sorted((luminance(rgb(tab.evaluate(style, name))), luminance(rgb(paper))))
        assert (light[1] + 0.05) / (light[0] + 0.05) >= 4.5, name


def test_nothing_is_wrong(show):
    tab = show(evaluation_of(("a", "a")))
    assert tab.locator("#all-right").is_visible()
    assert tab.locator("#worst article").count() == 0


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_everyone_can_use_the_report(show, colours):
    tab = show(evaluation_of(*PAIRS), colours=colours)
    assert accessibility_problems(tab) == []
    buttons = tab.get_by_role("button", name="Show attention")
    names = [tab.get_by_role("button", name=f"Show attention {source}") for source in "01234"]
    assert [one.count() for one in (buttons, *names)] == [5] + [1] * 5, "each names its sentence"
    buttons.first.click()
    tab.locator("#grid button[aria-selected=true]").wait_for()
    assert accessibility_problems(tab) == []
    assert tab.locator("main").count() == 1


def test_the_language_of_texts(show):
    evaluation = evaluation_of(("null", "eins"), ("one", "one"))
    evaluation.answers[0] = dataclasses.replace(evaluation.answers[0], group="de")
    tab = show(evaluation)
    texts = tab.locator("#worst dd")
    assert [texts.nth(i).get_attribute("lang") for i in range(3)] == ["", "de", "de"]
    assert tab.locator("#best dd").nth(1).get_attribute("lang") == "en"
