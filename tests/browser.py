"""Chromium for tests of pages, and what they ask of a page in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-prefers-reduced-motion", "--window-size=1400,1000",
)  # fmt: skip


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have Chromium and chromedriver")
        pytest.skip("Chromium and chromedriver are not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in SWITCHES:
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


def opened(driver: Any, address: str) -> Any:
    """The driver with a page in it whose charts are drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get_log("performance")
    driver.get(address)
    drawn = "return document.documentElement.dataset.charts === 'drawn'"
    WebDriverWait(driver, 120).until(lambda d: d.execute_script(drawn))
    return driver


def asked(driver: Any) -> list[str]:
    """Addresses that were requested since the log was read last."""
    messages = [json.loads(line["message"])["message"] for line in driver.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def column(page: Any, table: str, index: int) -> list[str]:
    """Texts of a column's visible cells."""
    script = """return [...document.getElementById(arguments[0]).tBodies[0].rows]
        .filter((row) => row.offsetParent !== null).map((row) => row.cells[arguments[1]].textContent.trim())"""
    found: list[str] = page.execute_script(script, table, index)
    return found


def head(page: Any, table: str, name: str) -> tuple[int, Any]:
    """Place and element of a column's head."""
    heads = page.find_elements("css selector", f"#{table} thead th")
    names = [h.text.strip() for h in heads]
    return names.index(name), heads[names.index(name)]


def number(text: str) -> float:
    return float(text.strip("~*±%").replace(" %", "").split()[0])


def width_of(page: Any, window: int) -> int:
    """Width of the page in a window of this width: more, if something is wider than the window."""
    metrics = {"width": window, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        return int(page.execute_script("return document.documentElement.scrollWidth"))
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
