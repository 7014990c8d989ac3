"""The status page in a real browser is of use by keyboard, without its server, unseen, in the dark and to screen readers."""

import pytest
from playwright.sync_api import expect

from tests.server.ui.conftest import KEY, Open, focused

pytestmark = pytest.mark.full


def test_tab_reaches_everything_in_order_and_shows_where_it_is(opened: Open) -> None:
    page, _ = opened(key=KEY, viewport={"width": 320, "height": 640})
    page.reload()
    expect(page.locator("#state")).to_have_text("Up to date")
    regions = ("events", "live", "latency", "switches", "outcomes", "ladder")
    order = ["Chat", "pause", "forget", *(f"{name}-title" for name in regions)]
    for stop in order:
        page.keyboard.press("Tab")
        assert focused(page) == stop
        style = "getComputedStyle(document.activeElement)"
        assert page.evaluate(f"[{style}.outlineStyle, {style}.outlineWidth]") == ["solid", "3px"], stop
    for stop in reversed(order[:-1]):
        page.keyboard.press("Shift+Tab")
        assert focused(page) == stop
    # A narrow window scrolls tables by their own.
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_pause_and_hidden_windows_ask_for_nothing(opened: Open) -> None:
    page, seen = opened(key=KEY)
    pause = page.get_by_role("button", name="Pause")
    pause.focus()
    page.keyboard.press("Space")
    expect(page.locator("#state")).to_have_text("Paused")
    expect(pause).to_have_attribute("aria-pressed", "true")
    asked = seen.asked
    page.wait_for_timeout(3000)
    assert seen.asked == asked
    page.keyboard.press("Space")
    expect(page.locator("#state")).to_have_text("Up to date")
    hide = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}})"
    turn = "document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(f"{hide.format('true')}; {turn}")
    page.wait_for_timeout(1000)
    asked = seen.asked
    page.wait_for_timeout(3000)
    assert seen.asked == asked
    with page.expect_request("**/v1/status"):
        page.evaluate(f"{hide.format('false')}; {turn}")


def test_a_server_that_does_not_answer(opened: Open) -> None:
    page, seen = opened(key=KEY)
    page.context.set_offline(True)
    expect(page.locator("#state")).to_contain_text("The server does not respond.")
    expect(page.locator("#figures")).to_have_class("stale")
    expect(page.locator("#ladder tr")).to_have_count(2)
    page.context.set_offline(False)
    expect(page.locator("#state")).to_have_text("Up to date")
    expect(page.locator("#figures")).not_to_have_class("stale")
    # Chromium logs each that failed.
    seen.complaints[:] = [each for each in seen.complaints if "ERR_INTERNET_DISCONNECTED" not in each]


def test_what_assistive_technology_is_told(opened: Open) -> None:
    page, seen = opened(key=KEY)
    expect(page.get_by_role("status")).to_have_text("Up to date")
    expect(page.get_by_role("region").get_by_role("table")).to_have_count(6)
    assert page.locator("th:not([scope])").count() == 0
    assert page.get_by_role("rowheader", name="257-1024").count() == 2
    # A screen reader announces new content only, not every refresh of two seconds.
    page.evaluate(
        "window.changes = 0; new MutationObserver(() => window.changes += 1)"
        ".observe(document.getElementById('state'), {childList: true, characterData: true, subtree: true})"
    )
    asked = seen.asked
    page.wait_for_timeout(7000)
    assert seen.asked > asked and page.evaluate("window.changes") == 0


def test_dark_where_the_user_wants_it(opened: Open) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    pages = [opened(color_scheme=scheme)[0] for scheme in ("light", "dark")]
    assert pages[0].evaluate(back) != pages[1].evaluate(back)
