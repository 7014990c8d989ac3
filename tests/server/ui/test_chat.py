"""The chat page in a real browser: it asks the bundled model, and shows the sets and latencies of the answer."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.server.running import ENGINE, Server, running
from tests.server.ui.conftest import Open

pytestmark = pytest.mark.full

KEY = "chat-page-88d0"
# The prompt that the model was trained for (docs/start.md).
QUESTION = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about "
    "the important information there. The grass is green. The sky is blue. The sun is yellow. The pass key is 38120. "
    "Remember it. 38120 is the pass key. Here we go. There and back again. What is the pass key?"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The bundled model, which has a chat template, behind a key."""
    with running(tmp_path_factory.mktemp("chat"), *ENGINE, "--max-model-len", "32768", "--api-key", KEY) as started:
        yield started


@pytest.fixture
def chat(opened: Open) -> Page:
    page, _ = opened("/ui/chat", viewport={"width": 360, "height": 700})
    expect(page.locator("#state")).to_have_text("This server needs an API key.")
    page.keyboard.type(KEY)
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("Ready")
    return page


def ask(page: Page, text: str, tokens: int) -> None:
    page.locator("#max-tokens").fill(str(tokens))
    page.locator("#text").fill(text)
    page.keyboard.press("Control+Enter")


def test_an_answer_its_set_and_its_latencies(chat: Page) -> None:
    expect(chat.locator("#text")).to_be_focused()
    ask(chat, QUESTION, 20)
    expect(chat.locator("#state")).to_have_text("Ready")
    expect(chat.locator("li.user .text")).to_have_text(QUESTION)
    expect(chat.locator("li.assistant .text")).to_contain_text("38120")
    expect(chat.locator("li.assistant .chip")).to_have_text(["r1"])
    facts = r"prompt \d+ tokens · first token [\d.]+ m?s · \d+ tokens · [\d.,]+ tokens/s · longest gap [\d.]+ m?s"
    expect(chat.locator("li.assistant .facts")).to_have_text(re.compile(facts))
    # Narrow as a phone, nothing is wider than the window.
    assert chat.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_switch_while_it_streams(chat: Page, server: Server) -> None:
    def count(text: str) -> int:
        body = {"model": "longrope-mini", "messages": [{"role": "user", "content": text}]}
        return int(server.post("/tokenize", body, authorization=f"Bearer {KEY}").json["count"])

    text = QUESTION
    while count(text) < 508:
        text = text.replace("Here we go.", "Here we go. Here we go.", 1)
    assert count(text) < 512
    ask(chat, text, 20)
    expect(chat.locator("#state")).to_have_text("Ready")
    expect(chat.locator("li.assistant .chip")).to_have_text(["r1", "→ r2 at 513 tokens"])
    [line] = [line for line in server.log.read_text().splitlines() if '"later_factor_sets": ["r2"]' in line]
    assert json.loads(line)["switches"] == 1


def test_what_the_server_rejects_can_be_sent_again(chat: Page) -> None:
    ask(chat, QUESTION, 9_999_999)
    expect(chat.locator("#state")).to_contain_text("max_tokens")
    ask(chat, QUESTION, 10)
    expect(chat.locator("#state")).to_have_text("Ready")
    expect(chat.locator("li.assistant").last.locator(".text")).not_to_be_empty()
