"""Servers of other models, each with sets: embeddings, adapters and odd names under a policy that reserves, all by HTTP."""

from pathlib import Path
from typing import Any

import pytest
import torch
from openai import OpenAI
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import AutoModelForCausalLM

from tests.exactness.reference import Reference
from tests.server.checkpoint import SETS, ladder_of
from tests.server.conftest import MODEL
from tests.server.observed import Moved, scrape
from tests.server.running import ENGINE, running
from tests.server.test_factor_sets_api import MESSAGES, STOP

pytestmark = pytest.mark.full


def embedded(reference: Reference, tokens: list[int]) -> torch.Tensor:
    """The normalized last hidden state of a sequence, with the reference's forced set."""
    model: Any = reference.model
    with torch.no_grad(), reference._angles(len(tokens)):
        state = model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0, -1]
    return functional.normalize(state, dim=0)


def test_pooling_routes_have_sets_too(checkpoint: Path, tmp_path: Path) -> None:
    """Routes that read no ``vllm_xargs``: each embedding equals Hugging Face's in the forced set, longer ones included."""
    references = {name: Reference.load(checkpoint, ladder_of(checkpoint), name) for name in SETS}
    flags = ["--runner", "pooling", "--convert", "embed", "--served-model-name", MODEL, "--ladder-aliases"]
    with (
        running(tmp_path, str(checkpoint), *ENGINE, *flags, "--max-num-batched-tokens", "64") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        prompts = [[5 + i % 90 for i in range(length)] for length in (40, 300)]
        response = client.embeddings.with_raw_response.create(model=MODEL, input=prompts)
        assert response.headers["x-rope-factor-set"] == "short, long"
        # The second round finds blocks of both sets in the prefix cache.
        for name in SETS * 2:
            response = client.embeddings.with_raw_response.create(model=f"{MODEL}@{name}", input=prompts)
            assert response.headers["x-rope-factor-set"] == f"{name}, {name}"
            answer = response.parse()
            assert answer.model == MODEL
            for prompt, each in zip(prompts, answer.data, strict=True):
                found = torch.tensor(each.embedding)
                assert found == pytest.approx(embedded(references[name], prompt), abs=1e-4)
                assert found != pytest.approx(embedded(references[SETS[name == "short"]], prompt), abs=1e-3)
        for path, body in (
            ("/pooling", {"input": "hi"}),
            ("/score", {"text_1": "hi", "text_2": "ho"}),
            ("/rerank", {"query": "hi", "documents": ["ho", "ha"]}),
            ("/v2/embed", {"texts": ["hi"], "embedding_types": ["float"]}),
            ("/invocations", {"input": "hi"}),
        ):
            for name in SETS:
                posted = server.post(path, body | {"model": f"{MODEL}@{name}"})
                assert posted.status == 200 and set((posted.sets or "").split(", ")) == {name}, (path, posted.text)
                assert posted.json.get("model", MODEL) == MODEL
            assert server.post(path, body | {"model": f"{MODEL}@nope"}).status == 400
        asked = {"model": MODEL, "input": "hi", "vllm_xargs": {"rope_factor_set": "long"}}
        refused = server.post("/v1/embeddings", asked)
        assert refused.status == 400 and refused.json["error"]["param"] == "vllm_xargs.rope_factor_set"
        listed = [each.id for each in client.models.list().data]
        assert listed == [MODEL, *(f"{MODEL}@{name}" for name in SETS)]
        assert all(client.models.retrieve(each).id == each for each in listed)


def test_adapters_and_names_with_the_separator_on_a_server_that_reserves(checkpoint: Path, tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(1)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["qkv_proj", "o_proj"], init_lora_weights=False)
    adapted = get_peft_model(base, config)
    adapted.save_pretrained(tmp_path / "adapter")
    reference = Reference(adapted.merge_and_unload().eval(), ladder_of(checkpoint), "long")
    flags = ["--served-model-name", "tiny@v1", "tiny@long", "--ladder-aliases", "--enable-lora", "--max-lora-rank", "8"]
    # With a chat's 20 tokens, the limit is more than the 256 of the first set.
    flags += ["--lora-modules", f"adapter={tmp_path / 'adapter'}", "--ladder-policy", "reserve"]
    flags += ["--override-generation-config", '{"max_new_tokens": 240}']
    with running(tmp_path, str(checkpoint), *ENGINE, *flags) as server:
        prompt = [5 + i % 90 for i in range(40)]
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1, "return_token_ids": True}
        answer = server.post("/v1/completions", body | {"model": "adapter@long"})
        assert (answer.status, answer.sets, answer.json["model"]) == (200, "long", "adapter"), answer.text
        [choice] = answer.json["choices"]
        reference.check(prompt, choice["token_ids"], choice["logprobs"]["token_logprobs"])
        names = {"tiny@v1": "short", "tiny@long": "short", "adapter": "short"}
        for name, expected in (names | {"tiny@v1@long": "long", "tiny@long@short": "short"}).items():
            assert server.post("/v1/completions", body | {"model": name}).sets == expected
        assert server.post("/v1/completions", body | {"model": "adapter@nope"}).status == 400
        listed = [each["id"] for each in server.get("/v1/models").json["data"]]
        assert listed == [*names, *(f"{name}@{each}" for name in names for each in SETS)]

        assert server.get("/v1/rope").json["policy"] == server.get("/v1/status").json["policy"] == "reserve"
        chat: dict[str, Any] = {"model": "tiny@v1", "messages": MESSAGES} | STOP
        by_length = {"vllm_xargs": {"rope_ladder_policy": "length"}}
        for changes, expected in (({}, "long"), ({"max_tokens": 5}, "short"), (by_length, "short")):
            answer = server.post("/v1/chat/completions", chat | changes)
            assert (answer.status, answer.sets) == (200, expected), answer.text
        # Nothing of an answer that crosses is recomputed. The steps of a beam search do not know the answer's limit.
        before = scrape(server)
        crossing: dict[str, Any] = {"model": "tiny@v1", "prompt": [9] * 240, "max_tokens": 30, "ignore_eos": True}
        beams = {"n": 2, "use_beam_search": True}
        refused = server.post("/v1/completions", crossing | beams)
        assert (refused.status, refused.json["error"]["param"]) == (400, "use_beam_search"), refused.text
        for changes in ({}, beams | {"model": "tiny@v1@long"}):
            answer = server.post("/v1/completions", crossing | changes)
            assert (answer.status, answer.sets) == (200, "long"), answer.text
        moved = Moved(before, scrape(server))
        assert moved("switches_total") == 0 and moved("generated_tokens_total") > 60
        for name in ("prompt_tokens_total", "generated_tokens_total"):
            assert moved(name, factor_set="short") == 0
        policy = "ladder_policy_requests_total"
        assert moved(policy, policy="reserve") == 1 and moved(policy, policy="length") == 0
