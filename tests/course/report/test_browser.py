"""The page in a real browser: drawn, sorted, filtered, without a fault on its console and without a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.browser import asked, column, driver, head, number, opened, width_of
from tests.course.language.english import english
from tests.course.report import runs

from convforge.course.report import load, render, write

__all__ = ["driver"]
pytestmark = [pytest.mark.browser, pytest.mark.thorough]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("browser")
    shown, _ = load([runs.write(folder / "a.jsonl", runs.records())])
    write(folder / "page.html", render(shown))
    return (folder / "page.html").as_uri()


@pytest.fixture
def page(driver: Any, address: str) -> Any:
    return opened(driver, address)


def test_nothing_goes_wrong_and_nothing_is_asked_of_a_network(page: Any, address: str) -> None:
    assert page.get_log("browser") == []
    requested = asked(page)
    assert address in requested
    assert [url for url in requested if not url.startswith(("data:", address))] == []


def test_every_chart_is_drawn_with_its_marks(page: Any) -> None:
    plots = page.find_elements("css selector", ".plot")
    assert len(plots) == 16
    for plot in plots:
        marks = plot.find_elements("css selector", "svg .role-mark path, svg .role-mark rect")
        assert len(marks) > 5, plot.get_attribute("id")
        assert plot.size["width"] >= plot.find_element("css selector", "svg").size["width"] > 200
    # Every time of the first panel; FFT was skipped at one size.
    points = page.find_elements("css selector", "#run0-chart-time-0-1 .role-mark.mark-symbol path")
    assert len(points) == 10 * 7 - 1


def test_charts_take_their_colours_from_the_page(page: Any) -> None:
    script = "return getComputedStyle(document.querySelector('#run0-chart-time-0-1 .mark-line path')).stroke"
    colours = {}
    for scheme in ("light", "dark"):
        page.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        colours[scheme] = page.execute_script(script)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert all(colour.startswith("rgb") for colour in colours.values())
    assert colours["light"] != colours["dark"]


def test_a_click_sorts_by_value_and_a_second_one_turns_it_round(page: Any) -> None:
    index, name = head(page, "run0-results", "time, ms")
    before = [number(text) for text in column(page, "run0-results", index)]
    assert before != sorted(before)
    name.find_element("css selector", "button").click()
    assert name.get_attribute("aria-sort") == "ascending"
    assert [number(text) for text in column(page, "run0-results", index)] == sorted(before)
    name.find_element("css selector", "button").click()
    assert name.get_attribute("aria-sort") == "descending"
    assert [number(text) for text in column(page, "run0-results", index)] == sorted(before, reverse=True)


def test_the_keyboard_sorts_and_one_column_at_a_time_is_sorted(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    index, name = head(page, "run0-results", "case")
    button = name.find_element("css selector", "button")
    page.execute_script("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    cases = column(page, "run0-results", index)
    # As people sort: 64 before 1024.
    assert cases.index("rgb_to_1_64_s1") < cases.index("rgb_to_1_1024_s1")
    button.send_keys(Keys.SPACE)
    assert name.get_attribute("aria-sort") == "descending"
    other, next_name = head(page, "run0-results", "GFLOP/s")
    next_name.find_element("css selector", "button").send_keys(Keys.ENTER)
    assert name.get_attribute("aria-sort") == "none"
    rates = [number(text) for text in column(page, "run0-results", other)]
    assert rates == sorted(rates)


def test_missing_values_stay_last_either_way(page: Any) -> None:
    details = page.find_elements("css selector", "#run0-sizes details")[0]
    details.find_element("css selector", "summary").click()
    index, name = head(page, "run0-series-0", "winograd_f2")
    for _ in range(2):
        name.find_element("css selector", "button").click()
        texts = column(page, "run0-series-0", index)
        assert set(texts[7:]) == {"–"}
        assert "–" not in texts[:7]


def test_the_filter_keeps_rows_with_every_word_and_says_how_many(page: Any) -> None:
    box = page.find_element("css selector", "#run0-results-filter")
    everything = len(column(page, "run0-results", 0))
    box.send_keys("DIRECT_rows 2048")
    rows = column(page, "run0-results", 0)
    assert len(rows) == 6
    assert all("2048" in text for text in rows)
    said = page.find_element("css selector", ".filter output").text
    assert said == f"6 of {everything} rows"
    box.send_keys(" nosuchword")
    assert column(page, "run0-results", 0) == []
    box.clear()
    box.send_keys(" ")
    assert len(column(page, "run0-results", 0)) == everything


def test_the_legend_hides_a_method_in_all_charts(page: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    def points() -> int:
        return len(page.find_elements("css selector", ".plot .role-mark.mark-symbol path"))

    before = points()
    buttons = page.find_elements("css selector", ".legend button[data-method='scipy_ndimage']")
    assert len(buttons) == 2
    buttons[0].click()
    # Seven sizes, three strides, two families, by time and by rate; six points of the roofline.
    WebDriverWait(page, 10).until(lambda _: points() == before - 7 * 3 * 2 * 2 - 6)
    assert [b.get_attribute("aria-pressed") for b in buttons] == ["false", "false"]
    buttons[1].click()
    WebDriverWait(page, 10).until(lambda _: points() == before)


def test_a_tooltip_shows_a_point_and_hostile_names_as_text(driver: Any, tmp_path: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait

    hostile = "<img src=x onerror=window.owned=1>"
    rows = [row | {"algorithm": hostile} for row in runs.results(sizes=(32, 64, 128), methods=("direct_rows",))]
    shown, _ = load([runs.write(tmp_path / "a.jsonl", [runs.header(), runs.ceilings("before"), *rows])])
    write(tmp_path / "page.html", render(shown))
    driver.get((tmp_path / "page.html").as_uri())
    drawn = "return document.documentElement.dataset.charts === 'drawn'"
    WebDriverWait(driver, 60).until(lambda d: d.execute_script(drawn))
    point = driver.find_element("css selector", "#run0-chart-time-0-1 .role-mark.mark-symbol path")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", point)
    ActionChains(driver).move_to_element(point).perform()
    tip = WebDriverWait(driver, 10).until(lambda d: d.find_element("css selector", "#vg-tooltip-element.visible"))
    assert hostile in tip.text
    assert "GFLOP/s" in tip.text
    assert driver.execute_script("return window.owned") is None
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_never_scrolls_sideways(page: Any, width: int) -> None:
    assert width_of(page, width) == width


@pytest.fixture(scope="module")
def chinese_address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("chinese")
    shown, _ = load([runs.write(folder / "a.jsonl", runs.records())])
    write(folder / "page.html", render(shown, language="zh"))
    return (folder / "page.html").as_uri()


def test_a_chinese_page_draws_sorts_and_filters(driver: Any, chinese_address: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(chinese_address)
    drawn = "return document.documentElement.dataset.charts === 'drawn'"
    WebDriverWait(driver, 60).until(lambda d: d.execute_script(drawn))
    assert driver.execute_script("return document.documentElement.lang") == "zh"

    labels = driver.execute_script("return [...document.querySelectorAll('.plot svg text')].map((t) => t.textContent)")
    assert {"每次调用的时间", "图像边长，像素", "最快对照库的时间 ÷ 本库的时间", "屋顶线"} <= set(labels)
    names = set(runs.METHODS) | {"rgb_to_1", "rgb_to_3"}
    assert {label for label in labels if english(label, names)} == set()

    index, name = head(driver, "run0-results", "时间，ms")
    before = [number(text) for text in column(driver, "run0-results", index)]
    name.find_element("css selector", "button").click()
    assert [number(text) for text in column(driver, "run0-results", index)] == sorted(before)
    whose, name = head(driver, "run0-results", "归属")
    name.find_element("css selector", "button").click()
    found = column(driver, "run0-results", whose)
    assert list(dict.fromkeys(found)) in (["本库", "对照库"], ["对照库", "本库"])

    box = driver.find_element("css selector", "#run0-results-filter")
    output = driver.find_element("css selector", ".filter output")
    assert output.text == f"{len(before)} 行"
    box.send_keys("direct_rows 2048")
    assert output.text == f"{len(before)} 行中的 6 行"
    assert len(column(driver, "run0-results", 0)) == 6
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("width", [420, 1400])
def test_a_chinese_page_never_scrolls_sideways(driver: Any, chinese_address: str, width: int) -> None:
    driver.get(chinese_address)
    assert width_of(driver, width) == width
