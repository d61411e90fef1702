"""The page in a real headless browser. Tests do not install it: `make browser` does."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_sets import write_image

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser: the system's Chromium, else playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        executable = shutil.which("chromium") or driver.chromium.executable_path
        if not Path(executable).exists():
            pytest.skip("no Chromium: `make browser` installs it")
        browser = driver.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def window(chromium) -> Iterator[Any]:
    """A tab of 1280 px that records its requests, errors and dialogs."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.asked, page.errors, page.dialogs = [], [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("dialog", lambda dialog: (page.dialogs.append(dialog.message), dialog.dismiss()))
    yield page
    context.close()


@pytest.fixture
def tab(window, address) -> Any:
    """The page, freshly loaded."""
    window.goto(address)
    for records in (window.errors, window.dialogs):
        records.clear()
    # this image comes with the first event, so the page's own script is running by then
    window.wait_for_selector("#dc-upload img")
    settle(window)
    return window


def settle(tab: Any) -> None:
    """Let gradio's client close its stream after a result: a request in that moment would wait for the next event."""
    tab.wait_for_timeout(400)


def upload(tab: Any, file: Any) -> None:
    remove = tab.locator("#dc-upload button[aria-label='Remove Image']")
    if remove.count():
        remove.first.click()
        remove.first.wait_for(state="detached")
        settle(tab)
    tab.locator("#dc-upload input[type=file]").set_input_files(str(file))


def visible_maps(tab: Any) -> list[str]:
    return [image.get_attribute("src") for image in tab.locator("img.dc-map:visible").all()]


def test_an_upload_and_new_texts_change_maps_and_scores(tab, tmp_path):
    noise = write_image(tmp_path / "noise.png", 3, (120, 90))
    scene = visible_maps(tab)
    assert len(scene) == 2
    assert tab.locator(".dc-card h3").all_inner_texts() == ["Plain", "Differential"]
    upload(tab, noise)
    tab.wait_for_function("old => (document.querySelector('img.dc-map')?.src ?? old) !== old", arg=scene[0])
    settle(tab)
    assert set(visible_maps(tab)).isdisjoint(scene)
    assert tab.locator("#dc-scenes input:checked").count() == 0
    tab.locator("#dc-texts textarea").fill("a zebra\ntwo boats")
    tab.locator("#dc-look").click()
    tab.wait_for_selector(".dc-text:has-text('two boats')")
    assert tab.locator(".dc-card").first.locator(".dc-text").all_inner_texts() == ["a zebra", "two boats"]
    assert tab.locator("#dc-notice p").count() == 0
    shares = [float(text.rstrip("%")) for text in tab.locator(".dc-value").all_inner_texts()]
    assert sum(shares) == pytest.approx(200, abs=0.3)


def test_choosing_another_text_or_map_needs_no_server_request(tab):
    first = visible_maps(tab)
    count = len(tab.asked)
    tab.locator("#dc-choice input").nth(1).check()
    tab.wait_for_function("document.querySelector('.dc-chosen').dataset.bar === '1'")
    second = visible_maps(tab)
    assert len(second) == 2
    assert set(second).isdisjoint(first)
    tab.get_by_label("Attention", exact=True).check()
    tab.wait_for_function(
        "document.querySelectorAll('img.dc-map[data-map=attention]:not([hidden])').length === 2"
    )
    assert set(visible_maps(tab)).isdisjoint(second)
    tab.get_by_label("A2", exact=True).check()
    tab.wait_for_selector(".dc-none:visible")
    assert tab.locator(".dc-none:visible").inner_text().endswith("there is no A2.")
    assert len(visible_maps(tab)) == 1
    opacity = "getComputedStyle(document.querySelector('img.dc-map:not([hidden])')).opacity"
    assert tab.evaluate(opacity) == "0.6"
    slider = tab.locator("#dc-opacity input[type=range]")
    slider.focus()
    for _ in range(10):
        slider.press("ArrowLeft")
    tab.wait_for_function(f"{opacity} === '0.5'")
    assert not [url for url in tab.asked[count:] if "queue/join" in url]


def test_hostile_texts_are_shown_literally_and_never_run(tab):
    hostile = [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(2)>",
        "${alert(3)} {{value}} {{#each value}}x{{/each}}",
        "\"'><svg onload=alert(4)>",
    ]
    tab.locator("#dc-texts textarea").fill("\n".join(hostile))
    tab.locator("#dc-look").click()
    tab.wait_for_selector(".dc-text:has-text('onload')")
    assert tab.locator(".dc-card").first.locator(".dc-text").all_inner_texts() == hostile
    assert tab.locator("#dc-choice label").all_inner_texts() == hostile
    tab.wait_for_timeout(300)
    assert tab.dialogs == []
    assert tab.locator(".dc-results script, .dc-results [onerror], .dc-results [onload]").count() == 0


def test_the_page_sends_no_request_to_other_hosts(tab, address):
    tab.locator("#dc-look").click()
    settle(tab)
    assert tab.asked
    assert all(url.startswith((address, "data:", "blob:")) for url in tab.asked)
    assert tab.errors == []


@pytest.mark.parametrize("width", [820, 390])
def test_the_page_fits_its_window(chromium, address, width):
    context = chromium.new_context(viewport={"width": width, "height": 844})
    tab = context.new_page()
    tab.goto(address)
    tab.wait_for_selector(".dc-results")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    # the first layout comes before the fonts and images of the page
    tab.wait_for_function(
        """wide => {
            const [left, right] = [...document.querySelectorAll(".dc-card")].map(card => card.getBoundingClientRect());
            return (left.top === right.top && left.right <= right.left) === wide;
        }""",
        arg=width >= 820,
    )
    context.close()
