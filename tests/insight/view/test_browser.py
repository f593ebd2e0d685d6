"""The page in a real browser: what is seen, that it is live, and that texts of data stay texts."""

import json
import os
import re
import shutil

import numpy as np
import pytest

from headrace import IterDataset, MapDataset
from headrace.sources import JsonLinesDataSource
from tests.insight.view.hostile import HOSTILE
from tests.support.proc import WAIT_S, until

for library in ("starlette", "uvicorn", "jinja2", "playwright"):
    pytest.importorskip(library)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.xdist_group("browser"),
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run", "--disable-dev-shm-usage"]
SCREENSHOTS = os.environ.get("HEADRACE_SCREENSHOTS")  # a folder to keep them in


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


def picture(row):
    shade = np.linspace(0, 255, 32, dtype=np.uint8)
    image = np.stack([np.tile(shade, (32, 1)), np.tile(shade, (32, 1)).T, np.full((32, 32), row["n"] % 256)], axis=-1)
    return {**row, "image": image.astype(np.uint8)}


def darker(element, rng):
    return {**element, "image": (element["image"] * rng.uniform(0.3, 0.9)).astype(np.uint8)}


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    """A mix of two files, whose names, labels and texts are hostile."""
    parts = {}
    for name in ("photos", HOSTILE):
        path = tmp_path_factory.mktemp("data") / f"{name[:4]}<b>.jsonl"
        path.write_text(
            "".join(json.dumps({"n": i, "label": HOSTILE, HOSTILE: "x" * (i % 7)}) + "\n" for i in range(200))
        )
        records = MapDataset.source(JsonLinesDataSource(path)).seed(4).shuffle().map(picture).random_map(darker)
        parts[name] = records.repeat().to_iter_dataset()
    return IterDataset.mix(parts, dict(zip(parts, (3, 1), strict=True))).filter(lambda e: e["n"] % 3).batch(4)


@pytest.fixture
def open_page(browser, ds):
    """Opens the page of the pipeline; afterwards there must have been no error, and no request to anybody else."""
    opened = []

    def open_(**options):
        view = ds.view(title=HOSTILE, open_browser=False)
        context = browser.new_context(**options)
        context.set_default_timeout(WAIT_S * 1000)
        page = context.new_page()
        seen = []
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on(
            "request",
            lambda request: seen.append(request.url) if not request.url.startswith((view.url, "data:")) else None,
        )
        opened.append((view, context, seen))
        open_.seen = seen
        page.goto(view.url)
        return page

    yield open_
    for view, context, seen in opened:
        context.close()
        view.close()
        assert seen == []


def shot(page, name):
    if SCREENSHOTS:
        page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=True)


def number_in(page, selector):
    return float(re.sub(r"[^\d.]", "", page.text_content(selector)) or 0)


def test_the_graph_shows_all_operations_and_live_numbers(open_page, ds):
    page = open_page()
    labels = page.locator(".node .label").all_text_contents()
    assert [label.split("(")[0] for label in labels if "(" in label].count("random_map") == 2
    assert [label.split("(")[0] for label in labels][-3:] == ["mix", "filter", "batch"]
    assert "test_browser.py:" in page.text_content(".node:last-child .fine")
    until(lambda: number_in(page, "#count") > 0, "nothing runs")
    before = number_in(page, "#count")
    until(lambda: number_in(page, "#count") > before, "numbers stay the same")
    assert number_in(page, "#rate") > 0
    page.wait_for_selector(".numbers:has-text('/s')")
    assert page.text_content("#state") == "running"
    page.click("#run")
    page.wait_for_selector("#state:has-text('paused')")
    assert page.text_content("#run") == "Resume"


def test_elements_are_side_by_side_and_found_by_number(open_page, ds):
    page = open_page()
    page.wait_for_selector(".step")
    page.fill("#number", "12")
    page.press("#number", "Enter")
    expected = list(ds.take(13))[12]["n"].tolist()
    page.wait_for_selector(".step:has-text('element 12')")
    shown = page.locator(".step tr:has(b:text-is('n')) td:last-child").all_text_contents()
    assert {str(number) for number in expected} <= set(shown)
    labels = page.locator(".step h3").all_text_contents()
    assert labels[-1] == "batch(4)"
    assert "random_map" in " ".join(labels)
    # All at once: what is above them changes while the pipeline runs.
    tops = page.locator(".step").evaluate_all("steps => steps.map(step => Math.round(step.getBoundingClientRect().y))")
    assert len(set(tops[:3])) == 1  # side by side
    origins = page.locator(".origins tbody tr")
    assert origins.count() == 4
    assert "<b>.jsonl" in origins.first.text_content()
    assert "Seeds: " in page.text_content(".origins")
    assert page.locator(".element img").count() >= 4
    assert page.evaluate("[...document.querySelectorAll('.element img')].every(image => image.naturalWidth > 0)")
    page.click("#next")
    page.wait_for_selector(".step:has-text('element 13')")
    assert page.input_value("#number") == "13"
    page.fill("#number", "-3")
    page.dispatch_event("#search", "submit")
    page.wait_for_selector("#elements .error")
    assert "0 or more" in page.text_content("#elements .error")
    (refused,) = open_page.seen
    assert "400 (Bad Request)" in refused
    open_page.seen.clear()


def test_mixtures_and_lengths_are_plotted(open_page):
    page = open_page()
    page.wait_for_selector("#figures polygon")

    def shares():
        return sorted(re.findall(r"\d+%", " ".join(page.locator(".legend li").all_text_contents())))

    until(lambda: shares() == ["25%", "75%"], "the shares are not those of the weights")
    page.wait_for_selector("#figures rect.bar")
    assert "Lengths of " in page.text_content("#figures")
    page.wait_for_selector("#figures polyline")


def test_texts_of_data_stay_texts(open_page):
    page = open_page()
    page.wait_for_selector(".step")
    page.wait_for_selector("#figures polygon")
    assert page.title() == HOSTILE
    assert HOSTILE in page.text_content("#elements")
    assert HOSTILE in page.text_content("#figures")
    assert page.evaluate("window.ran") is None
    assert page.locator("script").count() == 1  # the page's own
    assert page.locator("[onerror], [onfocus], [autofocus]").count() == 0
    # Even if a text became markup, the policy would not let it run.
    blocked = page.evaluate(
        """() => new Promise(done => {
            document.addEventListener('securitypolicyviolation', event => done(event.effectiveDirective), { once: true });
            const made = document.createElement('script');
            made.textContent = "window.ran = 'inserted'";
            document.body.append(made);
            if (window.ran) done('it has run');
        })"""
    )
    assert blocked == "script-src-elem"
    assert page.evaluate("window.ran") is None
    assert [message for message in open_page.seen if "Content Security Policy" not in message] == []
    open_page.seen.clear()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_fits_the_screen_and_follows_the_colours(open_page, scheme, width):
    page = open_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.wait_for_selector(".step")
    page.wait_for_selector("#figures rect.bar")
    page.wait_for_selector(".numbers:has-text('/s')")
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 1  # browsers round it
    red, green, blue = map(
        int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]
    )
    assert (red + green + blue > 600) == (scheme == "light")
    shot(page, f"view-{scheme}-{width}")


def test_a_report_is_a_file_of_its_own(open_page, browser, tmp_path):
    page = open_page()
    page.wait_for_selector("#figures rect.bar")
    with page.expect_download() as download:
        page.click("text=Save report")
    path = tmp_path / "report.html"
    download.value.save_as(path)
    with browser.new_context(
        offline=True, java_script_enabled=False, viewport={"width": 1400, "height": 900}
    ) as context:
        saved = context.new_page()
        saved.goto(path.as_uri())
        assert HOSTILE in saved.text_content("h1")
        assert saved.locator(".node").count() == page.locator(".node").count()
        assert saved.locator("svg polygon").count() >= 2
        shot(saved, "report")
