"""The status page of a real server in a real browser: it asks for the key, and shows what the metrics tell."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.server.running import Server
from tests.server.ui.conftest import KEY, PREFIX, Open, focused

pytestmark = pytest.mark.full

WRONG = "another-77ab"
SHORT, LONG = "1-256", "257-1024"
TIME = r"[\d.]+ (ms|s|min)"


def cells(page: Page, table: str) -> list[list[str]]:
    """The texts of a table's rows."""
    rows = page.locator(f"#{table} tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def answer(server: Server, prompt: int, tokens: int, first: int = 5) -> None:
    """Prompts that begin with the same token share their keys."""
    body = {"prompt": [first + i % 200 for i in range(prompt)], "max_tokens": tokens, "ignore_eos": True}
    assert server.post("/v1/completions", body, authorization=f"Bearer {KEY}").status == 200


@contextmanager
def busy(server: Server, *prompts: int) -> Iterator[None]:
    """A client for each of ``prompts``, lengths in tokens, that asks for one longest answer after the other."""
    stop = Event()

    def ask(prompt: int) -> None:
        while not stop.is_set():
            answer(server, prompt, 1024 - prompt)

    with ThreadPoolExecutor() as clients:
        asking = [clients.submit(ask, prompt) for prompt in prompts]
        try:
            yield
        finally:
            stop.set()
    for each in asking:
        each.result()


def test_the_key_is_asked_for_and_kept_for_the_tab_by_keyboard_alone(opened: Open, server: Server) -> None:
    page, seen = opened()
    state = page.locator("#state")
    expect(state).to_have_text("This server needs an API key.")
    expect(page.locator("#figures")).to_be_hidden()
    for stop in ("Chat", "pause", "key"):
        page.keyboard.press("Tab")
        assert focused(page) == stop
    page.keyboard.type(WRONG)
    page.keyboard.press("Tab")
    assert focused(page) == "Use this key"
    page.keyboard.press("Enter")
    expect(state).to_have_text("This API key is wrong.")
    expect(page.locator("#key")).to_be_focused()
    assert page.evaluate("sessionStorage.length") == 0
    asked = seen.asked
    page.keyboard.type("schlüssel")
    page.keyboard.press("Enter")
    expect(state).to_contain_text("printable ASCII characters")
    assert seen.asked == asked
    page.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    expect(state).to_have_text("Up to date")
    expect(page.locator("#key-form")).to_be_hidden()
    expect(page.locator("#figures")).to_be_focused()
    # Kept in the tab, and nowhere else.
    assert page.evaluate("[...Object.values(sessionStorage), localStorage.length, document.cookie]") == [KEY, 0, ""]
    assert KEY not in "".join(seen.urls)
    page.reload()
    expect(state).to_have_text("Up to date")
    page.get_by_role("button", name="Forget the key").click()
    expect(state).to_have_text("This server needs an API key.")
    assert page.evaluate("sessionStorage.length") == 0
    assert KEY not in server.log.read_text()


@pytest.mark.parametrize("path", ["/ui/", f"{PREFIX}/ui"])
def test_the_page_works_below_a_prefix_and_with_a_slash(opened: Open, path: str) -> None:
    page, seen = opened(path, KEY)
    expect(page.locator("#ladder tr")).to_have_count(2)
    assert page.url.endswith("/ui")
    start = page.url.removesuffix("/ui")
    assert {url.removeprefix(start) for url in seen.urls} >= {"/ui/app.js", "/ui/style.css", "/v1/status"}
    assert [(*row[:3], row[-1]) for row in cells(page, "ladder")] == [
        ("short", "256", "listed", "short_factor of the config"),
        ("long", "1,024", "listed", "long_factor of the config"),
    ]
    expect(page.locator("#server")).to_have_text(re.compile(r"passkey-tiny, ropeswitch \d.* on vLLM 0\.3[23]\.0"))
    expect(page.locator("#ladder-note")).to_have_text("Maximum length 1,024 tokens; exact angles.")


def test_latency_switches_and_outcomes_are_those_of_the_metrics(opened: Open, server: Server) -> None:
    page, _ = opened(key=KEY)
    # It outgrows its set at once, and no other prompt has its keys in the next one.
    answer(server, 256, 20, first=9)
    assert server.post("/v1/completions", {"prompt": [5] * 2000}, authorization=f"Bearer {KEY}").status == 400
    outcome = page.locator("#outcomes tr", has_text="rejected: invalid").locator("td")
    expect(outcome).to_have_text(re.compile(r"[1-9]"))
    figures = server.get("/v1/status", authorization=f"Bearer {KEY}").json["figures"]
    # The page is asked again after all has ended.
    page.reload()
    expect(page.locator("#state")).to_have_text("Up to date")
    [short, _long] = figures["latency"]
    row = cells(page, "latency")[0]
    counts = [short[name]["count"] for name in ("time_to_first_token", "inter_token_latency", "end_to_end")]
    assert row[0] == SHORT and [row[4], row[8], row[12]] == [f"{count:,}" for count in counts]
    assert all(re.fullmatch(TIME, row[column]) for column in (1, 2, 3, 5, 6, 7, 9, 10, 11)), row
    [switches] = figures["switches"]
    [row] = cells(page, "switches")
    assert switches["count"] >= 1 and 1 <= switches["recomputed_tokens"] != switches["cached_tokens"]
    counts = [switches[name] for name in ("count", "recomputed_tokens", "cached_tokens")]
    assert row[:4] == ["long", *(f"{count:,}" for count in counts)]
    assert re.fullmatch(TIME, row[4]) and all(re.fullmatch(f"≤ {TIME}", value) for value in row[5:]), row
    assert dict(cells(page, "outcomes"))["length"] == f"{figures['outcomes']['length']:,}"


def test_a_mark_moves_right_as_its_request_decodes_and_changes_colour_as_it_switches(
    opened: Open, server: Server
) -> None:
    page, _ = opened(key=KEY)
    expect(page.locator("#picture .band text")).to_have_text(["short", "long"])
    place = "mark => Number(mark.querySelector('circle').style.transform.match(/[\\d.]+/)[0])"
    # A request decodes for half a second in the short set and two in the long one: too short to be seen every 2 s.
    page.evaluate(
        "() => { const upstream = setTimeout; window.setTimeout = (call, wait) => upstream(call, wait / 10); }"
    )
    with busy(server, 40):
        mark = page.wait_for_selector("#picture .mark.set-0.decoding", state="attached")
        assert mark is not None
        start = mark.evaluate(place)
        expect(page.locator("#picture-summary")).to_contain_text("1 decoding")
        page.wait_for_function("mark => mark.classList.contains('set-1')", arg=mark)
        assert mark.evaluate(place) > start
        expect(page.locator("#events tr").first).to_contain_text("long")
        [first, *_] = cells(page, "events")
        assert first[1:3] == [SHORT, "long"] and re.fullmatch(TIME, first[-1]), first
    expect(page.locator("#picture .mark")).to_have_count(0)
    # Live requests are counted in the band of their prompt, until their answers have ended.
    long = page.locator("#live tr", has_text=LONG).locator("td")
    with busy(server, 400, 500):
        expect(long.nth(2)).to_have_text("2")
        assert cells(page, "live")[0][:4] == [SHORT, "short", "0", "0"]
        expect(page.locator("#live tr:last-child i")).to_have_css("width", re.compile(r"^\d{2,}"))
    expect(long.nth(2)).to_have_text("0")


def test_a_thousand_requests_stay_fluent(opened: Open) -> None:
    """What a small server cannot have is put into each answer of ``/v1/status`` on its way to the page."""
    page, _ = opened(key=KEY)

    def sequence(number: int) -> dict[str, Any]:
        state = ("decoding", "decoding", "prefilling", "queued")[number % 4]
        lengths = {"prompt_tokens": 16 + number % 200, "tokens": 20 + number, "computed_tokens": 8}
        factor_set = "short" if number < 237 else "long"
        return {"number": number, "factor_set": factor_set, "state": state, **lengths}

    def fulfill(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        body["figures"]["running"] = [sequence(number) for number in range(1000)]
        route.fulfill(response=response, json=body)

    page.route("**/v1/status", fulfill)
    expect(page.locator("#picture .mark")).to_have_count(1000)
    expect(page.locator("#picture-summary")).to_contain_text("500 decoding (119 in short, 381 in long), 250 prefilling")
    # What a refresh may keep the page from answering, in ms; far below the 2 s between two.
    longest = page.evaluate(
        "new Promise(done => { let last = performance.now(), longest = 0;"
        "  const end = last + 5000; const step = now => { longest = Math.max(longest, now - last); last = now;"
        "  now > end ? done(longest) : requestAnimationFrame(step); }; requestAnimationFrame(step); })"
    )
    assert longest < 1000
