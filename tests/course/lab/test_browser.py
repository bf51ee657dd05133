"""The lab's page in a real browser: read, sorted, filtered, printed, in both languages."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from tests.browser import asked, column, driver, head, number, opened, width_of
from tests.course.lab import books

from convforge.course.lab import render
from convforge.course.report import write

__all__ = ["driver"]
pytestmark = [pytest.mark.browser, pytest.mark.thorough]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("browser")
    for code, other, name in (("en", "zh", "lab.html"), ("zh", "en", "lab-zh.html")):
        address = "lab-zh.html" if code == "en" else "lab.html"
        write(found / name, render(books.stored(), code=code, pages=[(other, address)]))
    return found


@pytest.fixture(scope="module")
def loaded(driver: Any, folder: Path) -> Any:
    return opened(driver, (folder / "lab.html").as_uri())


@pytest.fixture
def page(loaded: Any, folder: Path) -> Any:
    address = (folder / "lab.html").as_uri()
    return loaded if loaded.current_url.partition("#")[0] == address else opened(loaded, address)


def test_every_chart_is_drawn_without_a_fault_or_a_request(page: Any, folder: Path) -> None:
    assert page.get_log("browser") == []
    address = (folder / "lab.html").as_uri()
    assert [url for url in asked(page) if not url.startswith(("data:", address))] == []
    plots = page.find_elements("css selector", ".plot")
    assert len(plots) >= 20
    for plot in plots:
        marks = plot.find_elements("css selector", "svg .role-mark path, svg .role-mark rect")
        assert len(marks) >= 3, plot.get_attribute("id")
    assert not page.find_elements("css selector", ".plot.failed")


def test_the_answers_come_first(page: Any) -> None:
    """Headline and all questions with their answers stand before the first chart."""
    tops = "return arguments[0].map((s) => document.querySelector(s).getBoundingClientRect().top + scrollY)"
    hero, answers, chart = page.execute_script(tops, [".hero .figure", "#answers", ".plot"])
    assert hero < 200
    assert hero < answers < chart
    said = page.find_elements("css selector", "#answers dd")
    assert len(said) == len(books.stored().chapters)
    assert all(len(answer.text) > 40 for answer in said)


def test_a_link_of_an_answer_leads_to_its_chapter(page: Any) -> None:
    link = page.find_element("css selector", "#answers a[href='#study-memory']")
    page.execute_script("arguments[0].click()", link)
    top = "return document.getElementById('study-memory').getBoundingClientRect().top"
    assert abs(page.execute_script(top)) < 60


def test_a_finding_s_figures_open_by_the_keyboard(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    summary = page.find_element("css selector", "#study-gemm .findings summary")
    table = page.find_element("css selector", "#study-gemm .findings details table")
    assert not table.is_displayed()
    page.execute_script("arguments[0].focus()", summary)
    summary.send_keys(Keys.ENTER)
    assert table.is_displayed()
    assert "GFLOP/s" in table.text or "ms" in table.text
    summary.send_keys(Keys.ENTER)
    assert not table.is_displayed()


def test_a_chapter_s_numbers_sort_and_filter(page: Any) -> None:
    details = page.find_elements("css selector", "#study-memory > details.numbers")[-1]
    page.execute_script("arguments[0].open = true", details)
    table = "study-memory-results"
    index, name = head(page, table, "time, ms")
    button = name.find_element("css selector", "button")
    page.execute_script("arguments[0].click()", button)
    assert name.get_attribute("aria-sort") == "ascending"
    times = [number(text) for text in column(page, table, index)]
    assert times == sorted(times)
    box = page.find_element("css selector", f"#{table}-filter")
    box.send_keys("direct_shared 7x7")
    rows = column(page, table, 0)
    assert rows
    assert all("7x7" in text for text in rows)
    assert (
        page.find_element("css selector", f"output[for='{table}-filter']").text == f"{len(rows)} of {len(times)} rows"
    )


def test_a_legend_hides_a_method_in_its_chapter_alone(page: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    def points(chapter: str) -> int:
        return len(page.find_elements("css selector", f"#{chapter} .plot .role-mark.mark-symbol path"))

    size, stride = points("study-size"), points("study-stride")
    button = page.find_element("css selector", "#study-size .legend button[data-method='cudnn']")
    page.execute_script("arguments[0].click()", button)
    WebDriverWait(page, 10).until(lambda _: points("study-size") == size - 9)  # of nine sizes
    assert points("study-stride") == stride
    page.execute_script("arguments[0].click()", button)
    WebDriverWait(page, 10).until(lambda _: points("study-size") == size)


def test_a_kernel_opens_with_its_source_beside_its_times(page: Any) -> None:
    details = page.find_element("css selector", "#kernel-direct_tiled")
    page.execute_script("arguments[0].open = true", details)
    code, times = details.find_element("css selector", ".code"), details.find_element("css selector", "aside table")
    assert "__global__" in code.text
    assert "rgb_to_3_8192_s1" in times.text
    assert code.rect["x"] + code.rect["width"] <= times.rect["x"]


def test_the_other_language_is_a_click_away(page: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    page.find_element("css selector", ".languages a").click()
    WebDriverWait(page, 120).until(
        lambda d: d.execute_script("return document.documentElement.dataset.charts === 'drawn'")
    )
    assert page.execute_script("return document.documentElement.lang") == "zh"
    assert "问题" in page.find_element("css selector", "#answers h2").text
    assert page.get_log("browser") == []


def paper(page: Any) -> bytes:
    raw = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert raw.startswith(b"%PDF")
    return raw


def pages_of(raw: bytes) -> int:
    return raw.count(b"/Type /Page\n") + raw.count(b"/Type /Page ")


def test_it_prints_whole(page: Any) -> None:
    """As PDF: as many pages as its height asks for, the charts among them, no control left."""
    assert 20 < pages_of(paper(page)) < 60
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for control in (".filter", ".contents", ".languages", "#keys"):
            assert not any(e.is_displayed() for e in page.find_elements("css selector", control)), control
        assert page.find_element("css selector", "#study-size .plot svg").is_displayed()
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


# What stands on paper once the browser has told the page that it prints, and whether it fits a sheet of A4.
ON_PAPER = """
const shown = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.offsetParent !== null).length;
return {
  charts: document.querySelectorAll(".plot svg").length, plots: document.querySelectorAll(".plot").length,
  steps: shown("#breakdown-steps tr, #study-breakdown-steps tr"), verdicts: shown("#peers-verdicts tr"),
  published: shown("#published tbody tr"), kernels: shown(".kernels tbody tr"), sources: shown(".kernels .code"),
  results: shown("#study-size-results tr"), said: shown(".chapter > p.paper"),
  width: document.documentElement.scrollWidth,
};
"""


def test_paper_holds_what_the_page_shows_only_when_asked(page: Any) -> None:
    """Tables that no chart shows are opened, long ones are said to be elsewhere; what was closed is closed again."""
    closed = "return document.querySelectorAll('details:not([open])').length"
    before = page.execute_script(closed)
    metrics = {"width": 703, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        found = page.execute_script(ON_PAPER)
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert found["charts"] == found["plots"]
    assert found["steps"] > 10
    assert found["verdicts"] > 80
    assert found["published"] > 100
    assert found["kernels"] > 50
    assert (found["sources"], found["results"]) == (0, 0)
    assert found["said"] == len(books.stored().chapters)
    assert found["width"] <= 703, "what is wider shrinks the whole print"
    assert page.execute_script(closed) == before


# A page whose charts after the first never get their turn, and whose printer counts them.
HALT = """
window.setTimeout = () => 0;
window.print = () => { window.printed = document.querySelectorAll(".plot svg").length };
"""
PRINTED = """
const tell = arguments[0];
(function look() { window.printed ? tell(window.printed) : requestAnimationFrame(look) })()
"""


def test_printed_at_load_every_chart_is_there(driver: Any, folder: Path) -> None:
    """Before the page had the time to draw: by the browser's print, and by a script's."""
    from selenium.webdriver.support.ui import WebDriverWait

    def load() -> None:
        driver.get(address)
        WebDriverWait(driver, 60).until(lambda d: d.execute_script("return document.readyState === 'complete'"))

    address = (folder / "lab.html").as_uri()
    added = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": HALT})
    drawn = "return document.querySelectorAll('.plot svg').length"
    try:
        load()
        plots = len(driver.find_elements("css selector", ".plot"))
        assert driver.execute_script(drawn) == 1, "the others wait for their turn, which never comes here"
        assert pages_of(paper(driver)) > 20
        assert driver.execute_script(drawn) == plots
        load()
        assert driver.execute_script(drawn) == 1
        driver.execute_script("window.print()")
        assert driver.execute_async_script(PRINTED) == plots
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": added["identifier"]})


def test_arrow_keys_read_a_chart_as_the_pointer_does(page: Any) -> None:
    """The tooltip goes along with its point, and away with it."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    def said() -> str:
        return str(page.execute_script("return document.getElementById('reading').textContent"))

    def hint() -> str:
        return " ".join(
            str(page.execute_script("return document.getElementById('vg-tooltip-element').innerText")).split()
        )

    plot = page.find_element("css selector", "#study-size .plot")
    assert plot.get_attribute("tabindex") == "0"
    assert "Arrow keys" in page.find_element("id", plot.get_attribute("aria-describedby")).get_attribute("textContent")
    page.execute_script("arguments[0].focus(); arguments[0].scrollIntoView({block: 'center'})", plot)
    plot.send_keys(Keys.ARROW_RIGHT)
    first, shown = said(), hint()
    assert "method: direct_naive" in first
    assert "size: 32;" in first
    assert "(1/90)" in first
    words = first.rpartition(" (")[0].replace("; ", " ").replace(": ", " ")
    assert shown == words
    plot.send_keys(Keys.END)
    assert "method: direct_naive" in said()
    assert "size: 8192;" in said()
    plot.send_keys(Keys.ARROW_DOWN)
    assert "size: 8192;" in said()
    assert "method: direct_naive" not in said()
    seen = set()
    plot.send_keys(Keys.ARROW_UP, Keys.HOME)
    for _ in range(90):
        seen.add(said())
        plot.send_keys(Keys.ARROW_RIGHT)
    assert len(seen) == 90, "one key reaches them all"
    marked = plot.find_elements("css selector", ".read")
    assert len(marked) == 1
    plot.send_keys(Keys.HOME)
    keyed = hint()
    ActionChains(page).move_to_element(plot.find_element("css selector", ".read")).perform()
    assert hint() == keyed
    plot.send_keys(Keys.HOME)
    visible = "#vg-tooltip-element.visible"
    assert page.find_elements("css selector", visible)
    page.execute_script("scrollTo(0, document.documentElement.scrollHeight)")
    WebDriverWait(page, 10).until(lambda d: not d.find_elements("css selector", visible))
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    WebDriverWait(page, 10).until(lambda d: d.find_elements("css selector", visible))
    plot.send_keys(Keys.ESCAPE)
    assert said() == ""
    assert not plot.find_elements("css selector", ".read")


@pytest.mark.parametrize("chapter, count", [("breakdown", 36), ("timer", 6), ("accuracy", 83)])
def test_bars_and_marks_are_read_too(page: Any, chapter: str, count: int) -> None:
    from selenium.webdriver.common.keys import Keys

    plot = page.find_element("css selector", f"#study-{chapter} .plot")
    page.execute_script("arguments[0].focus()", plot)
    seen = set()
    for _ in range(count):
        plot.send_keys(Keys.ARROW_RIGHT)
        seen.add(page.execute_script("return document.getElementById('reading').textContent"))
    assert len(seen) == count
    assert all(text.endswith(f"/{count})") for text in seen)


def test_dark_and_light(page: Any) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        script = """return [[document.body, "backgroundColor"], [document.querySelector(".code span[class]"), "color"]]
            .map(([element, name]) => getComputedStyle(element)[name])"""
        seen[scheme] = page.execute_script(script)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_never_scrolls_sideways(page: Any, width: int) -> None:
    assert width_of(page, width) == width


@pytest.mark.parametrize("table", ["published-published-A", "all-errors"])
def test_on_a_telephone_a_number_stands_beside_the_names(page: Any, table: str) -> None:
    """Before anything is scrolled."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        right = "return document.querySelector(`#${arguments[0]} tbody td.n`).getBoundingClientRect().right"
        assert page.execute_script(right, table) <= 390
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
