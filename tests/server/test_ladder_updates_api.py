"""``POST /v1/rope/ladder`` over HTTP: tokens, names, keys, and what a wrong ladder gets."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, OpenAI

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.file import LadderFile, to_text
from tests.exactness import checkpoints
from tests.exactness.engines import prompts
from tests.exactness.reference import Reference
from tests.server.conftest import MODEL
from tests.server.length_metrics.ladders import total, values
from tests.server.running import ENGINE, Answer, Server, running
from tests.server.test_aliases_api import ladder_of

KEY = "a-key-of-the-tests"
VOCABULARY, TOKENS = 259, 8
# Long enough for an update to come before the end.
STREAMED = 300
# In, across and beyond the sets of all ladders here.
LENGTHS = [20, 125, 253, 300]
PATH = "/v1/rope/ladder"


@pytest.fixture(scope="module")
def start_ladder(checkpoint: Path) -> FactorLadder:
    return ladder_of(checkpoint)


@pytest.fixture(scope="module")
def other(start_ladder: FactorLadder) -> FactorLadder:
    """Its first set is the start's, with a shorter end."""
    short, long = start_ladder.sets
    return FactorLadder(
        (
            replace(short, name="near", max_length=128),
            replace(long, name="far", factors=tuple(checkpoints.factors(16, 1.2, 20.0)), scale=1.4),
        )
    )


@pytest.fixture(scope="module")
def references(checkpoint: Path, start_ladder: FactorLadder, other: FactorLadder) -> dict[str, Reference]:
    model = Reference.load(checkpoint).model
    return {"start": Reference(model, start_ladder), "other": Reference(model, other)}


@pytest.fixture(scope="module")
def updated(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["--served-model-name", MODEL, "--allow-ladder-updates", "--api-key", KEY, "--block-size", "32"]
    with running(tmp_path_factory.mktemp("updated"), str(checkpoint), *ENGINE, *flags) as started:
        yield started


@pytest.fixture(scope="module")
def opened(updated: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{updated.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def as_at_the_start(updated: Server, start_ladder: FactorLadder) -> Iterator[None]:
    yield
    assert send(updated, start_ladder).status == 200
    for each in served(updated)["ladders"]:
        assert delete(updated, each["name"]).status == 200


def body(ladder: FactorLadder, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(to_text(LadderFile(ladder)))
    return fields | more


def send(server: Server, ladder: FactorLadder, **more: Any) -> Answer:
    return server.post(PATH, body(ladder, **more), authorization=f"Bearer {KEY}")


def delete(server: Server, name: str) -> Answer:
    import urllib.request

    request = urllib.request.Request(f"{server.url}{PATH}/{name}", method="DELETE")
    request.add_header("authorization", f"Bearer {KEY}")
    return server._send(request)


def served(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/v1/rope", authorization=f"Bearer {KEY}").json
    return found


def ask(client: OpenAI, model: str, prompt: list[int], tokens: int = TOKENS) -> tuple[list[int], list[float], str, int]:
    """Tokens, log-probabilities, factor set and cached tokens of an answer."""
    response = client.completions.with_raw_response.create(
        model=model, prompt=prompt, max_tokens=tokens, temperature=0, logprobs=1,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )  # fmt: skip
    parsed: Any = response.parse()
    assert parsed.model == model
    [choice] = parsed.choices
    details = parsed.usage.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    return list(choice.token_ids), list(choice.logprobs.token_logprobs), response.headers["x-rope-factor-set"], cached


@pytest.mark.full
def test_a_ladder_takes_the_place_of_another(
    updated: Server, opened: OpenAI, other: FactorLadder, references: dict[str, Reference]
) -> None:
    token_lists = prompts(LENGTHS, VOCABULARY)
    for prompt in token_lists:
        tokens, log_probs, factor_set, _ = ask(opened, MODEL, prompt)
        references["start"].check(prompt, tokens, log_probs)
        assert factor_set == ("short" if len(prompt) <= 256 else "long")
    answer = send(updated, other)
    assert (answer.status, answer.json) == (200, {"name": None, "sets": ["near", "far"], "recomputed": 0})
    assert [each["name"] for each in served(updated)["sets"]] == ["near", "far"]
    for prompt in token_lists:
        tokens, log_probs, factor_set, _ = ask(opened, MODEL, prompt)
        references["other"].check(prompt, tokens, log_probs)
        assert factor_set == ("near" if len(prompt) <= 128 else "far")
    tokens, log_probs, factor_set, _ = ask(opened, f"{MODEL}@near", token_lists[3])
    Reference(references["other"].model, other, "near").check(token_lists[3], tokens, log_probs)
    assert factor_set == "near"
    with pytest.raises(APIStatusError, match="unknown factor set 'short' of 'tiny'; known sets: 'near', 'far'"):
        ask(opened, f"{MODEL}@short", token_lists[0])


@pytest.mark.full
def test_named_ladders_run_beside_the_default_one(
    updated: Server, opened: OpenAI, other: FactorLadder, references: dict[str, Reference]
) -> None:
    assert send(updated, other, name="b").json == {"name": "b", "sets": ["b:near", "b:far"], "recomputed": 0}
    assert {each.id for each in opened.models.list()} == {MODEL, f"{MODEL}@b:"}
    assert [each["name"] for each in served(updated)["ladders"]] == ["b"]
    for prompt in prompts(LENGTHS, VOCABULARY, seed=3):
        for model, name in ((MODEL, "start"), (f"{MODEL}@b:", "other")):
            tokens, log_probs, factor_set, _ = ask(opened, model, prompt)
            references[name].check(prompt, tokens, log_probs)
            index = references[name].ladder.index_for(len(prompt))  # type: ignore[union-attr]
            assert factor_set == (("short", "long") if name == "start" else ("b:near", "b:far"))[index]
    [prompt] = prompts([30], VOCABULARY, seed=4)
    tokens, log_probs, factor_set, _ = ask(opened, f"{MODEL}@b:far", prompt)
    Reference(references["other"].model, other, "far").check(prompt, tokens, log_probs)
    assert factor_set == "b:far"
    metrics = updated.get("/metrics").text
    assert 'factor_set="b:far"' in metrics
    for model, text in (
        ("c:", "asks for the unknown ladder 'c'; known ladders: 'b'"),
        ("c:far", "asks for the unknown ladder 'c'; known ladders: 'b'"),
        ("b:short", "asks for the unknown factor set 'short' of 'tiny@b:'; known sets: 'near', 'far'"),
    ):
        with pytest.raises(APIStatusError, match=text) as error:
            ask(opened, f"{MODEL}@{model}", prompt)
        assert (error.value.status_code, error.value.body["param"]) == (400, "model")  # type: ignore[index]
    assert delete(updated, "b").json == {"name": "b"}
    assert delete(updated, "b").status == 404
    with pytest.raises(APIStatusError, match="asks for the unknown ladder 'b'; known ladders: none"):
        ask(opened, f"{MODEL}@b:", prompt)


@pytest.mark.full
def test_blocks_of_a_set_that_stays_are_found(updated: Server, opened: OpenAI, other: FactorLadder) -> None:
    short, long = prompts([120, 300], VOCABULARY, seed=5)
    assert [ask(opened, MODEL, each)[3] for each in (short, long, short, long)][:2] == [0, 0]
    before = hits(updated)
    ask(opened, MODEL, short), ask(opened, MODEL, long)
    both = hits(updated) - before
    assert send(updated, other).status == 200
    before = hits(updated)
    ask(opened, MODEL, short)
    kept = hits(updated) - before
    before = hits(updated)
    ask(opened, MODEL, long)
    assert 0 < kept < both and hits(updated) == before


def hits(server: Server) -> float:
    return total(values(server.get("/metrics").text, "vllm:"), "vllm:prefix_cache_hits_total")


@pytest.mark.full
def test_running_requests_finish_or_are_recomputed(
    updated: Server, opened: OpenAI, other: FactorLadder, references: dict[str, Reference]
) -> None:
    [prompt] = prompts([150], VOCABULARY, seed=6)
    for running_requests in ("finish", "recompute"):
        stream = opened.completions.create(
            model=MODEL, prompt=prompt, max_tokens=STREAMED, temperature=0, logprobs=1, stream=True,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )  # fmt: skip
        tokens: list[int] = []
        log_probs: list[float] = []
        place = None
        for event in stream:
            choice: Any = event.choices[0]
            tokens += choice.token_ids or ()
            log_probs += choice.logprobs.token_logprobs if choice.logprobs else ()
            if place is None and len(tokens) >= 5:
                place = len(tokens)
                answer = send(updated, other, running=running_requests)
                assert answer.json["recomputed"] == (running_requests == "recompute")
        assert place is not None and len(tokens) == STREAMED
        if running_requests == "finish":
            references["start"].check(prompt, tokens, log_probs)
            assert send(updated, references["start"].ladder).status == 200  # type: ignore[arg-type]
            continue
        moved = next(
            count
            for count in range(place, STREAMED - 20)
            if not fails(references["start"], prompt, tokens[:count], log_probs[:count])
            and not fails(references["other"], [*prompt, *tokens[:count]], tokens[count:], log_probs[count:])
        )
        assert moved >= place
    lines = updated.get("/metrics").text.splitlines()
    switches = [line for line in lines if line.startswith("ropeswitch_switches_total{")]
    assert any('factor_set="far"' in line and float(line.split()[-1]) >= 1 for line in switches)


def fails(reference: Reference, prompt: list[int], tokens: list[int], log_probs: list[float]) -> bool:
    try:
        reference.check(prompt, tokens, log_probs)
    except AssertionError:
        return True
    return False


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "param", "text"),
    [
        ({"name": ""}, "name", "name: '' must be a non-empty string"),
        ({"name": "a:b"}, "name", "name: 'a:b' must be a non-empty string"),
        ({"name": 3}, "name", "name: 3 must be a non-empty string"),
        ({"running": "drain"}, "running", "running: 'drain' must be one of finish, recompute"),
        ({"format": "other/1"}, "format", "format: 'other/1'; this version reads 'ropeswitch-factors/1'"),
        ({"rope_theta": 5e5}, "rope_theta", "rope_theta: 500000.0 must equal the model's, 10000.0, or be left out"),
        ({"sets": []}, "sets", "sets: must be a list of at least one factor set"),
        ({"extra": 1}, "extra", "'extra': unknown field"),
        (
            {"sets": [{"name": "a", "max_length": 1024, "factors": [1.0] * 15}]},
            "sets[0].factors",
            "15 factors; the model needs 16, one for each rotary frequency",
        ),
        (
            {"sets": [{"name": "a", "max_length": 1023, "factors": [1.0] * 16}]},
            "sets[0].max_length",
            "1023 must be at least 1024, the server's --max-model-len, which is fixed at startup",
        ),
        (
            {"sets": [{"name": "a", "max_length": 1024, "factors": [1.0] * 16, "softmax_scale": 2.0}]},
            "sets[0].softmax_scale",
            "2.0 is not supported: no set of the startup ladder scales the softmax",
        ),
        (
            {"sets": [{"name": f"s{n}", "max_length": 1024 + n, "factors": [1.0] * 16} for n in range(33)]},
            "sets",
            "sets: 33 sets; at most 32 are allowed",
        ),
    ],
)
def test_a_wrong_ladder_is_refused(
    updated: Server, start_ladder: FactorLadder, changes: dict[str, Any], param: str | None, text: str
) -> None:
    answer = send(updated, start_ladder, **changes)
    error = answer.json["error"]
    assert answer.status == 400 and text in error["message"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.full
def test_bodies_that_are_no_ladder(updated: Server, start_ladder: FactorLadder) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    for sent, status in ((b"{", 400), (b"[]", 400), (b"\xff", 400), (b'{"a": NaN}', 400), (b" " * (5 << 20), 413)):
        answer = updated.post(PATH, sent, **headers)
        assert (answer.status, answer.json["error"]["type"]) == (status, "invalid_request_error"), answer.text
    assert updated.post(PATH, body(start_ladder)).status == 401
    assert updated.post(PATH, body(start_ladder), authorization="Bearer wrong").status == 401


def test_ladders_are_fixed_without_the_flag(server: Server, start_ladder: FactorLadder) -> None:
    answer = server.post(PATH, body(start_ladder))
    assert (answer.status, answer.json["error"]["type"]) == (403, "permission_error")
    assert "Start the server with --allow-ladder-updates" in answer.json["error"]["message"]
