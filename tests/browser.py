"""Tests of pages in a browser: need playwright (the extra `browser`) and a Chromium, and are skipped without."""

import importlib.util
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("HEED_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no Chromium found; HEED_CHROMIUM can name one", allow_module_level=True)


def rgb(text):
    return [int(x) for x in text.removeprefix("rgb(").removesuffix(")").split(",")]


def luminance(colour):
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in np.divide(colour, 255)
    ]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


# Those that axe runs on request only.
_MORE_RULES = ("label-content-name-mismatch", "focus-order-semantics", "css-orientation-lock")


def accessibility_problems(tab):
    """List the violations that axe-core finds on a page, by all of its rules; skip the test without axe-core."""
    axe = importlib.util.find_spec("axe_playwright_python")
    if axe is None:
        pytest.skip("axe-core is missing: pip install axe-playwright-python")
    tab.evaluate((Path(axe.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    rules = {rule: {"enabled": True} for rule in _MORE_RULES}
    found = tab.evaluate("(rules) => axe.run(document, { rules })", rules)
    return [(one["id"], node["html"][:200]) for one in found["violations"] for node in one["nodes"]]
