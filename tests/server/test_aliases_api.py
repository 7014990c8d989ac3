"""``MODEL@SET`` over HTTP: every route that takes a model, the responses' ``model``, the errors, and exactness."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import BadRequestError, NotFoundError, OpenAI
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import AutoModelForCausalLM

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.hf_config import ladder_from_config
from tests.exactness.reference import Reference
from tests.server.conftest import MODEL
from tests.server.running import ENGINE, Server, running

SETS = ("short", "long")
LONG = f"{MODEL}@long"
HEADER = "x-rope-factor-set"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
# Every kind of generating route with a short prompt, and whether its response has a model.
ROUTES: dict[str, tuple[dict[str, Any], bool]] = {
    "/v1/completions": ({"prompt": "hi", "max_tokens": 3}, True),
    "/v1/chat/completions": ({"messages": MESSAGES, "max_tokens": 3}, True),
    "/v1/chat/completions/batch": ({"messages": [MESSAGES, MESSAGES], "max_tokens": 3}, True),
    "/v1/responses": ({"input": "hi", "max_output_tokens": 16}, True),
    "/v1/messages": ({"messages": MESSAGES, "max_tokens": 3}, True),
    "/invocations": ({"prompt": "hi", "max_tokens": 3}, True),
    "/generative_scoring": ({"query": "a", "items": ["b"], "label_token_ids": [5, 6]}, True),
    "/inference/v1/generate": ({"token_ids": [5, 6], "sampling_params": {"max_tokens": 3}}, False),
}
# The checkpoint's end of text (tests/server/checkpoint.py).
EOS = 2
BEAMS = {"max_tokens": 3, "n": 2, "use_beam_search": True, "temperature": 0}
# Routes that run no prompt.
OTHERS: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5, 6]},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
}


@pytest.mark.parametrize("path", ROUTES)
def test_a_model_with_a_set_is_served_in_it(server: Server, path: str) -> None:
    body, has_model = ROUTES[path]
    for name in SETS:
        answer = server.post(path, body | {"model": f"{MODEL}@{name}"})
        assert answer.status == 200, answer.text
        assert answer.sets is not None and set(answer.sets.split(", ")) == {name}
        if has_model:
            assert answer.json["model"] == MODEL
        # In no context but its own.
        assert set((server.post(path, body | {"model": MODEL}).sets or "").split(", ")) == {"short"}


@pytest.mark.parametrize("path", OTHERS)
def test_a_model_with_a_set_is_known_where_no_prompt_runs(server: Server, path: str) -> None:
    assert server.post(path, OTHERS[path] | {"model": LONG}).status == 200
    refused = server.post(path, OTHERS[path] | {"model": f"{MODEL}@nope"})
    assert refused.status == 400 and "'short', 'long'" in refused.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_stream_is_of_the_model_in_the_set(server: Server, path: str) -> None:
    body = ROUTES[path][0] | {"model": LONG, "stream": True}
    if path.endswith("completions"):
        body["stream_options"] = {"include_usage": True}
    answer = server.post(path, body)
    # A stream of the Responses API begins before its prompt is placed.
    assert (answer.status, answer.sets) == (200, None if path.endswith("responses") else "long")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    holders = [event.get("response") or event.get("message") or event for event in events]
    models = [holder["model"] for holder in holders if "model" in holder]
    assert models and set(models) == {MODEL}
    if path.endswith("completions"):
        assert len(models) == len(events) and events[-1]["usage"]["completion_tokens"] == 3


def test_openais_client_needs_nothing_else(client: OpenAI) -> None:
    completion = client.completions.with_raw_response.create(model=LONG, prompt=["a", "b" * 300], max_tokens=2)
    assert completion.headers[HEADER] == "long, long" and completion.parse().model == MODEL
    chat = client.chat.completions.with_raw_response.create(model=LONG, messages=MESSAGES, max_tokens=2)
    assert chat.headers[HEADER] == "long" and chat.parse().model == MODEL
    response = client.responses.with_raw_response.create(model=LONG, input="hi", max_output_tokens=16)
    assert response.headers[HEADER] == "long" and response.parse().model == MODEL
    with pytest.raises(BadRequestError, match="unknown factor set 'nope'") as refused:
        client.chat.completions.create(model=f"{MODEL}@nope", messages=MESSAGES)
    assert refused.value.param == "model"
    with pytest.raises(NotFoundError):
        client.chat.completions.create(model="other@long", messages=MESSAGES)


@pytest.mark.parametrize("path", ROUTES)
def test_wrong_names_are_refused(server: Server, path: str) -> None:
    body = ROUTES[path][0]
    unknown = server.post(path, body | {"model": f"{MODEL}@nope"})
    assert unknown.status == 400 and "unknown factor set 'nope'" in unknown.text, unknown.text
    assert "'short', 'long'" in unknown.text and unknown.sets is None
    if path != "/v1/messages":
        error = unknown.json["error"]
        assert (error["param"], error["type"]) == ("model", "invalid_request_error")
    # vLLM takes the model of /invocations from a header and ignores the body's, unless that names a set.
    headers = {"x-amzn-sagemaker-adapter-identifier": "other@long"} if path == "/invocations" else {}
    assert server.post(path, body | {"model": "other@long"}, **headers).status == 404


@pytest.mark.parametrize("path", [path for path in ROUTES if path != "/inference/v1/generate"])
def test_the_model_and_vllm_xargs_agree_or_are_refused(server: Server, path: str) -> None:
    body = ROUTES[path][0] | {"model": LONG}
    for stream in (False, True) if path in ("/v1/completions", "/v1/chat/completions", "/v1/responses") else (False,):
        same = server.post(path, body | {"vllm_xargs": {"rope_factor_set": "long"}, "stream": stream})
        assert same.status == 200 and set((same.sets or "long").split(", ")) == {"long"}, same.text
        other = server.post(path, body | {"vllm_xargs": {"rope_factor_set": "short"}, "stream": stream})
        assert other.status == 400 and "leave one of them out" in other.text, other.text


def test_aliases_are_listed_on_request_only(server: Server) -> None:
    assert [each["id"] for each in server.get("/v1/models").json["data"]] == [MODEL]
    assert server.get(f"/v1/models/{LONG}").status == 404


def ladder_of(checkpoint: Path) -> FactorLadder:
    ladder = ladder_from_config(json.loads((checkpoint / "config.json").read_text()))
    assert ladder is not None and ladder.names == SETS
    return ladder


def best_beams(reference: Reference, prompt: list[int], width: int, steps: int) -> list[list[int]]:
    """The best continuations of a prompt, best first, each step computed from scratch."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(steps):
        candidates = []
        for score, tokens in beams:
            values, ids = reference.log_probs([*prompt, *tokens])[-1].topk(2 * width)
            candidates += [
                (score + value, [*tokens, token])
                for value, token in zip(values.tolist(), ids.tolist(), strict=True)
                if token != EOS
            ]
        beams = sorted(candidates, key=lambda each: each[0], reverse=True)[:width]
    return [tokens for _, tokens in beams]


def test_beams_are_those_of_the_forced_set(server: Server, checkpoint: Path) -> None:
    """A request that ``vllm_xargs`` cannot force, against Hugging Face with the set's angles at every length."""
    ladder = ladder_of(checkpoint)
    prompt = [5 + i % 90 for i in range(40)]
    found = {}
    for name in SETS:
        body = {"model": f"{MODEL}@{name}", "prompt": prompt, "return_token_ids": True} | BEAMS
        answer = server.post("/v1/completions", body)
        assert (answer.status, answer.sets) == (200, name), answer.text
        found[name] = [choice["token_ids"] for choice in answer.json["choices"]]
        assert found[name] == best_beams(Reference.load(checkpoint, ladder, name), prompt, width=2, steps=3)
    assert found["short"] != found["long"]


def embedded(reference: Reference, tokens: list[int]) -> torch.Tensor:
    """The normalized last hidden state of a sequence, with the reference's forced set."""
    model: Any = reference.model
    with torch.no_grad(), reference._angles(len(tokens)):
        state = model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0, -1]
    return functional.normalize(state, dim=0)


@pytest.mark.full
def test_pooling_routes_have_sets_too(checkpoint: Path, tmp_path: Path) -> None:
    """Routes that read no ``vllm_xargs``: each embedding equals Hugging Face's in the forced set, longer ones included."""
    references = {name: Reference.load(checkpoint, ladder_of(checkpoint), name) for name in SETS}
    flags = [
        "--runner",
        "pooling",
        "--convert",
        "embed",
        "--served-model-name",
        MODEL,
        "--max-num-batched-tokens",
        "64",
    ]
    flags += ["--ladder-aliases"]
    with (
        running(tmp_path, str(checkpoint), *ENGINE, *flags) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        prompts = [[5 + i % 90 for i in range(length)] for length in (40, 300)]
        response = client.embeddings.with_raw_response.create(model=MODEL, input=prompts)
        assert response.headers[HEADER] == "short, long"
        # The second round finds blocks of both sets in the prefix cache.
        for name in SETS * 2:
            response = client.embeddings.with_raw_response.create(model=f"{MODEL}@{name}", input=prompts)
            assert response.headers[HEADER] == f"{name}, {name}"
            answer = response.parse()
            assert answer.model == MODEL
            for prompt, each in zip(prompts, answer.data, strict=True):
                expected = embedded(references[name], prompt)
                assert torch.tensor(each.embedding) == pytest.approx(expected, abs=1e-4)
                other = embedded(references[SETS[name == "short"]], prompt)
                assert torch.tensor(each.embedding) != pytest.approx(other, abs=1e-3)
        for path, body in (
            ("/pooling", {"input": "hi"}),
            ("/score", {"text_1": "hi", "text_2": "ho"}),
            ("/rerank", {"query": "hi", "documents": ["ho", "ha"]}),
            ("/v2/embed", {"texts": ["hi"], "embedding_types": ["float"]}),
            ("/invocations", {"input": "hi"}),
        ):
            answers = {name: server.post(path, body | {"model": f"{MODEL}@{name}"}) for name in SETS}
            for name, posted in answers.items():
                assert posted.status == 200 and set((posted.sets or "").split(", ")) == {name}, (path, posted.text)
                assert posted.json.get("model", MODEL) == MODEL
            assert server.post(path, body | {"model": f"{MODEL}@nope"}).status == 400
        asked = {"model": MODEL, "input": "hi", "vllm_xargs": {"rope_factor_set": "long"}}
        refused = server.post("/v1/embeddings", asked)
        assert refused.status == 400 and refused.json["error"]["param"] == "vllm_xargs.rope_factor_set"
        listed = [each.id for each in client.models.list().data]
        assert listed == [MODEL, *(f"{MODEL}@{name}" for name in SETS)]
        assert all(client.models.retrieve(each).id == each for each in listed)


@pytest.mark.full
def test_adapters_and_names_with_the_separator(checkpoint: Path, tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(1)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["qkv_proj", "o_proj"], init_lora_weights=False)
    adapted = get_peft_model(base, config)
    adapted.save_pretrained(tmp_path / "adapter")
    reference = Reference(adapted.merge_and_unload().eval(), ladder_of(checkpoint), "long")
    flags = ["--served-model-name", "tiny@v1", "tiny@long", "--ladder-aliases", "--enable-lora", "--max-lora-rank", "8"]
    flags += ["--lora-modules", f"adapter={tmp_path / 'adapter'}"]
    with running(tmp_path, str(checkpoint), *ENGINE, *flags) as server:
        prompt = [5 + i % 90 for i in range(40)]
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1, "return_token_ids": True}
        answer = server.post("/v1/completions", body | {"model": "adapter@long"})
        assert (answer.status, answer.sets, answer.json["model"]) == (200, "long", "adapter"), answer.text
        [choice] = answer.json["choices"]
        reference.check(prompt, choice["token_ids"], choice["logprobs"]["token_logprobs"])
        for name, expected in (
            ("adapter", "short"),
            ("tiny@v1", "short"),
            ("tiny@long", "short"),
            ("tiny@v1@long", "long"),
            ("tiny@long@short", "short"),
        ):
            assert server.post("/v1/completions", body | {"model": name}).sets == expected
        assert server.post("/v1/completions", body | {"model": "adapter@nope"}).status == 400
        listed = [each["id"] for each in server.get("/v1/models").json["data"]]
        names = ["tiny@v1", "tiny@long", "adapter"]
        assert listed == [*names, *(f"{name}@{each}" for name in names for each in SETS)]
