"""The page in a browser: needs playwright (the extra `browser`) and a Chromium; skipped without."""

import os
import shutil
import threading

import numpy as np
import pytest

from heed.inspect import Capture, page
from tests.inspect.test_page import random_weights, softmax, words

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("HEED_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no Chromium found; HEED_CHROMIUM can name one", allow_module_level=True)

T = 12


@pytest.fixture(scope="module")
def chromium():
    # Playwright runs an event loop, which not every other test can live with: a thread of its own would not share
    # its objects, so the browser is closed again before other files are tested.
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
