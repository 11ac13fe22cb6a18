"""Pictures of letters that matplotlib's own font lacks."""

import io
import warnings

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.text import Text

from heed import _fonts
from heed.figure import new_figure

LETTER = "三"


def make_font(path, name, letters):
    """Return a font in which all letters are one square."""
    pen = TTGlyphPen(None)
    for move, point in zip(
        ("moveTo", *["lineTo"] * 3), ((0, 0), (0, 500), (500, 500), (500, 0)), strict=True
    ):
        getattr(pen, move)(point)
    pen.closePath()
    builder = FontBuilder(1000)
    builder.setupGlyphOrder([".notdef", "square"])
    builder.setupCharacterMap({ord(letter): "square" for letter in letters})
    builder.setupGlyf({".notdef": pen.glyph(), "square": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (600, 0), "square": (600, 0)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": name, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


@pytest.fixture
def fonts(tmp_path, monkeypatch):
    """Add fonts to a machine that has matplotlib's alone."""
    own = [entry for entry in font_manager.fontManager.ttflist if "mpl-data" in entry.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    _fonts._find_fonts.cache_clear()

    def add(name, letters):
        font_manager.fontManager.addfont(make_font(tmp_path / f"{name}.ttf", name, letters))

    yield add
    _fonts._find_fonts.cache_clear()


def figure_of(text):
    figure = new_figure(9, 3)
    axes = figure.subplots()
    axes.set_xticks([0], [text], parse_math=False)
    return figure


def draw(figure, kind="png"):
    """Draw a figure; return the warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        figure.savefig(io.BytesIO(), format=kind)
    return [str(one.message) for one in seen]


def families(figure, text):
    found = next(one for one in figure.findobj(Text) if one.get_text() == text)
    return list(found.get_fontfamily())


def test_a_font_that_has_the_letters_draws_them(fonts):
    fonts("Emptiness", "xyz")
    fonts("Half Sans", "三")
    fonts("Whole", "三क")
    figure = figure_of(f"{LETTER} is three")
    assert draw(figure) == []
    assert families(figure, f"{LETTER} is three") == ["sans-serif", "Half Sans"]
    both = figure_of("三क")
    assert draw(both) == []
    assert families(both, "三क") == ["sans-serif", "Half Sans", "Whole"]
    plain = figure_of("Käse, سلام, привет")
    assert draw(plain) == []
    assert families(plain, "Käse, سلام, привет") == ["sans-serif"]


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_letters_that_no_font_has_are_said_once(fonts, kind):
    fonts("Half Sans", "二")
    figure = figure_of("三二一" * 9)
    (said,) = draw(figure, kind)
    assert said.startswith("the picture shows boxes in place of 一 三: no installed font has them")
    assert draw(figure, kind) == []
    many = figure_of("".join(map(chr, range(0x4E00, 0x4E20))))
    assert " and 22 more: " in many.set_fonts()
    assert draw(many, kind) == [], "it has been returned"
    assert figure_of("a\u200db\ufe0f\u2028c").set_fonts() == "", "nobody sees these"
