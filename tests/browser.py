"""Tests of pages in a browser: need playwright (the extra `browser`) and a Chromium, and are skipped without."""

import os
import shutil

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
