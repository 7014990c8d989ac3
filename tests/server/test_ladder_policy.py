"""``ropeswitch serve --ladder-policy reserve``, with an output limit of the server's own."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import MODEL
from tests.server.metrics.ladders import total
from tests.server.running import ENGINE, running
from tests.server.test_factor_sets_api import MESSAGES, STOP
from tests.server.test_length_metrics import scrape

pytestmark = pytest.mark.full

# With the chat's 20 tokens more than the 256 of the first set.
LIMIT = 240
FLAGS = ["--served-model-name", MODEL, "--ladder-policy", "reserve"]
FLAGS += ["--override-generation-config", f'{{"max_new_tokens": {LIMIT}}}']


def test_a_server_that_reserves(checkpoint: Path, tmp_path: Path) -> None:
    with running(tmp_path, str(checkpoint), *ENGINE, *FLAGS) as server:
        assert server.get("/v1/rope").json["policy"] == server.get("/v1/status").json["policy"] == "reserve"
        assert "ropeswitch: ladder policy reserve: a request is in the set of its prompt" in server.log.read_text()
        chat: dict[str, Any] = {"model": MODEL, "messages": MESSAGES} | STOP
        by_length = {"vllm_xargs": {"rope_ladder_policy": "length"}}
        for changes, expected in (({}, "long"), ({"max_tokens": 5}, "short"), (by_length, "short")):
            answer = server.post("/v1/chat/completions", chat | changes)
            assert (answer.status, answer.sets) == (200, expected), answer.text
        # Nothing of an answer that crosses is recomputed, whether in one request or in a beam search's many.
        before = scrape(server)
        crossing: dict[str, Any] = {"model": MODEL, "prompt": [9] * 240, "max_tokens": 30, "ignore_eos": True}
        for changes in ({}, {"n": 2, "use_beam_search": True}):
            answer = server.post("/v1/completions", crossing | changes)
            assert (answer.status, answer.sets) == (200, "long"), answer.text
        after = scrape(server)

        def moved(name: str, **labels: str) -> float:
            return total(after, f"ropeswitch_{name}_total", **labels) - total(
                before, f"ropeswitch_{name}_total", **labels
            )

        assert moved("switches") == 0 and moved("generated_tokens") > 60
        assert moved("prompt_tokens", factor_set="short") == moved("generated_tokens", factor_set="short") == 0
        assert moved("ladder_policy_requests", policy="reserve") == moved("ladder_policy_requests")
