"""A real headless Chromium for the tests of pages, and what they measure in it.

Skipped where playwright (the extra `browser`) or a Chromium is missing. It may be named by QUERYLECT_CHROMIUM, stand on
the PATH under one of its usual names (Debian's package `chromium` does), or be playwright's own.
"""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[browser]'")
    with playwright.sync_playwright() as driver:
        path = installed_chromium(driver.chromium.executable_path)
        if path is None:
            pytest.skip(
                f"no Chromium: QUERYLECT_CHROMIUM is unset, none of {', '.join(NAMES)} is on the PATH, and "
                "playwright has none. Install Debian's package chromium, or run `playwright install chromium`"
            )
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def installed_chromium(bundled):
    """The path of a Chromium: QUERYLECT_CHROMIUM, the first on the PATH, or playwright's, `bundled`; else None."""
    configured = os.environ.get("QUERYLECT_CHROMIUM")
    if configured and not shutil.which(configured):
        pytest.fail(f"QUERYLECT_CHROMIUM is {configured!r}, which is no program")
    return configured or next(filter(None, map(shutil.which, NAMES)), shutil.which(bundled))


_CONTRASTS = """() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => parts(colour).slice(0, 3).map((c) => c / 255)
      .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
      .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (e) => {
      for (; e; e = e.parentElement) {
        const colour = getComputedStyle(e).backgroundColor;
        if ((parts(colour)[3] ?? 1) === 1) return colour;
      }
      return "rgb(255, 255, 255)";
    };
    return [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility()
      && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.tagName !== "SCRIPT")
      .map((e) => {
        const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.tagName + "." + e.className];
      });
  }"""


def contrasts(page):
    """[contrast with its ground, element] of every visible text of the page."""
    return page.evaluate(_CONTRASTS)
