"""The plugin under the ``vllm serve`` command of docs/plugin.md: with the key and without it."""

import json
import math
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ropeswitch.factors import file
from ropeswitch.factors.evaluate.passkey import FILLER, OPENING, QUESTION, statement
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL
from ropeswitch.server.metrics.scheduling_metrics import GAUGES
from tests.exactness.reference import Reference
from tests.server.running import Server, running

pytestmark = pytest.mark.full

VLLM = "vllm.entrypoints.cli.main"
# The flags of docs/plugin.md's command, and float32, so that log-probabilities compare with Hugging Face's.
ENGINE = ["--kv-cache-memory-bytes", "1G", "--enforce-eager", "--dtype", "float32"]
LADDER = file.load(BUNDLED_FACTORS).ladder
KEY = "48213"
TOKENS = 8
ASKED = {"max_tokens": TOKENS, "temperature": 0, "logprobs": 1, "ignore_eos": True, "return_token_ids": True}
# The window of the model's config.
STOCK_WINDOW = 1024
# Sentences of filler on either side of the key: prompts in the first, second and third set.
PIECES = (6, 15, 20)


def additional_config(key: Any) -> list[str]:
    return ["--additional-config", json.dumps({"ropeswitch": key})]


def prompt(pieces: int) -> list[int]:
    """Token IDs of a pass-key prompt with ``pieces`` sentences of filler on either side of the key."""
    text = f"{OPENING}\n{FILLER * pieces}\n{statement(KEY)}\n{FILLER * pieces}\n{QUESTION}"
    return list(AutoTokenizer.from_pretrained(BUNDLED_MODEL).encode(text))


def ask(server: Server, tokens: list[int]) -> tuple[str, list[int], list[float]]:
    """The text, tokens and log-probabilities of a greedy completion."""
    model = server.get("/v1/models").json["data"][0]["id"]
    answer = server.post("/v1/completions", ASKED | {"model": model, "prompt": tokens})
    assert answer.status == 200, answer.text
    [choice] = answer.json["choices"]
    return choice["text"], choice["token_ids"], choice["logprobs"]["token_logprobs"]


def serve(folder: Path, *flags: str, **variables: str) -> AbstractContextManager[Server]:
    return running(folder, str(BUNDLED_MODEL), *ENGINE, *flags, command=VLLM, ready="/health", variables=variables)


def test_each_prompt_is_rotated_with_its_own_set(tmp_path: Path) -> None:
    reference = Reference.load(BUNDLED_MODEL, LADDER)
    with serve(tmp_path, ROPESWITCH_FACTORS=str(BUNDLED_FACTORS)) as server:
        for number, pieces in enumerate(PIECES):
            tokens = prompt(pieces)
            assert LADDER.index_for(len(tokens)) == number
            text, output, log_probs = ask(server, tokens)
            assert text.startswith(f" {KEY}")
            reference.check(tokens, output, log_probs)
        for name, reason in (("nope", "unknown factor set 'nope'"), (5, "5 must be the name of a factor set")):
            body = {"model": str(BUNDLED_MODEL), "prompt": "A", "vllm_xargs": {"rope_factor_set": name}}
            refused = server.post("/v1/completions", body)
            assert refused.status == 400 and f"rope_factor_set: {reason}" in refused.text, refused.text
        # Nothing of the server loads where VLLM_PLUGINS does not name it.
        assert server.get("/v1/rope").status == 404
        assert server.post("/v1/completions", {"model": f"{BUNDLED_MODEL}@r2", "prompt": "A"}).status == 404


def test_named_in_vllm_plugins_it_adds_sets_by_model_name_and_the_route(tmp_path: Path) -> None:
    flags = ["--served-model-name", "mini", *additional_config({"factors": str(BUNDLED_FACTORS)})]
    tokens = prompt(PIECES[0])
    with serve(tmp_path, *flags, VLLM_PLUGINS="ropeswitch") as server:
        rope = server.get("/v1/rope").json
        assert [each["name"] for each in rope["sets"]] == list(LADDER.names)
        for name in LADDER.names:
            answer = server.post("/v1/completions", ASKED | {"prompt": tokens, "model": f"mini@{name}"})
            assert (answer.status, answer.json["model"]) == (200, "mini"), answer.text
            [choice] = answer.json["choices"]
            reference = Reference.load(BUNDLED_MODEL, LADDER, name)
            reference.check(tokens, choice["token_ids"], choice["logprobs"]["token_logprobs"])
        # By length again.
        _, output, log_probs = ask(server, tokens)
        Reference.load(BUNDLED_MODEL, LADDER).check(tokens, output, log_probs)
        chat = {"messages": [{"role": "user", "content": "A"}], "max_tokens": 2, "stream": True}
        for model, status in (("mini@r2", 200), ("mini@nope", 400), ("other@r2", 404)):
            asked = server.post("/v1/chat/completions", chat | {"model": model})
            assert asked.status == status, (model, asked.text)
        assert [each["id"] for each in server.get("/v1/models").json["data"]] == ["mini"]
        # The rest of the server needs `ropeswitch serve`.
        assert server.get("/v1/status").status == server.get("/health/ready").status == 404
        assert answer.sets is None
        lines = server.get("/metrics").text.splitlines()
        ours = {line.split("{")[0]: line for line in lines if line.startswith("ropeswitch_")}
        assert set(ours) == {name for name, _ in GAUGES.values()}
        assert ours["ropeswitch_remaining_prefill_seconds"].endswith('{engine="0",model_name="mini"} 0.0')


def test_without_the_key_stock_vllm_serves(tmp_path: Path) -> None:
    """Stock rotates every prompt with the config's long factors, and takes its scale from the lengths alone."""
    [long] = LADDER.sets[-1:]
    scale = math.sqrt(1 + math.log(LADDER.max_length / STOCK_WINDOW) / math.log(STOCK_WINDOW))
    stock = Reference.load(BUNDLED_MODEL, FactorLadder((replace(long, scale=scale),)))
    ours = Reference.load(BUNDLED_MODEL, LADDER)
    with serve(tmp_path, VLLM_PLUGINS="ropeswitch") as server:
        assert server.get("/v1/rope").status == 404
        assert server.post("/v1/completions", {"model": f"{BUNDLED_MODEL}@r2", "prompt": "A"}).status == 404
        for pieces in PIECES:
            tokens = prompt(pieces)
            _, output, log_probs = ask(server, tokens)
            stock.check(tokens, output, log_probs)
            with pytest.raises(AssertionError, match=r"^token "):
                ours.check(tokens, output, log_probs)
