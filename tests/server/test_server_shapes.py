"""The server in its other shapes: several API servers, data parallel, embeddings, a ladder from a file."""

from pathlib import Path

import pytest
from openai import OpenAI

from ropeswitch.factors.evaluate.passkey import FILLER, OPENING, statement
from tests.exactness.checkpoints import factors, ladder_file
from tests.server.conftest import MODEL
from tests.server.metrics.ladders import total, values
from tests.server.running import ENGINE, Server, running

SHORT, LONG = "a" * 20, "b" * 300
PROMPTS = {"model": MODEL, "prompt": [SHORT, LONG], "max_tokens": 3}
NAME = ["--served-model-name", MODEL]


def answers_right(server: Server) -> None:
    for _ in range(8):
        answer = server.post("/v1/completions", PROMPTS)
        assert (answer.status, answer.sets) == (200, "short, long"), answer.text
        assert len(server.get("/v1/rope").json["sets"]) == 2
        unknown = server.post("/v1/completions", PROMPTS | {"vllm_xargs": {"rope_factor_set": "nope"}})
        assert unknown.status == 400


def counts_right(server: Server, engines: set[str]) -> None:
    """Whichever process answers, ``/metrics`` has each of the requests of :func:`answers_right` once."""
    for _ in range(6):
        found = values(server.get("/metrics").text)
        assert total(found, "ropeswitch_requests_total") == 24
        assert total(found, "ropeswitch_requests_total", outcome="rejected", engine="none") == 8
        for length, name in ((20, "short"), (300, "long")):
            assert total(found, "ropeswitch_prompt_tokens_total", factor_set=name) == 8 * length
            assert total(found, "ropeswitch_time_to_first_token_seconds_count", factor_set=name) == 8
            assert total(found, "ropeswitch_e2e_request_latency_seconds_count", factor_set=name) == 8
        generated = total(found, "ropeswitch_generated_tokens_total")
        assert total(found, "ropeswitch_inter_token_latency_seconds_count") == generated - 16
        status_page_right(server)
        used = {dict(labels)["engine"] for name, labels in found if name == "ropeswitch_prompt_tokens_total"}
        assert used == engines


def status_page_right(server: Server) -> None:
    """Whichever process answers, the status page's figures are those of all."""
    figures = server.get("/v1/status").json["figures"]
    assert sum(figures["outcomes"].values()) == 24 and figures["outcomes"]["rejected"] == 8
    assert [each["time_to_first_token"]["count"] for each in figures["latency"]] == [8, 8]
    places = [(each["factor_set"], each["waiting"], each["generating"]) for each in figures["live"]]
    assert places == [("short", 0, 0), ("long", 0, 0)]


@pytest.mark.full
def test_two_api_servers(checkpoint: Path, tmp_path: Path) -> None:
    with running(tmp_path, str(checkpoint), *ENGINE, *NAME, "--api-server-count", "2", "--verbose") as server:
        answers_right(server)
        counts_right(server, {"0"})
        assert server.log.read_text().count("Application startup complete") == 2


@pytest.mark.full
def test_data_parallel(checkpoint: Path, tmp_path: Path) -> None:
    with running(tmp_path, str(checkpoint), *ENGINE, *NAME, "--data-parallel-size", "2") as server:
        answers_right(server)
        counts_right(server, {"0", "1"})


@pytest.mark.full
def test_a_ladder_from_a_file(checkpoint: Path, tmp_path: Path) -> None:
    sets = [
        {"name": f"to-{length}", "max_length": length, "factors": factors(16, 1.0, largest)}
        for length, largest in ((64, 1.2), (128, 2.0), (2048, 12.0))
    ]
    file = ladder_file(tmp_path / "ladder.json", sets)
    with running(tmp_path, str(checkpoint), *ENGINE, *NAME, "--factors", str(file)) as server:
        body = {"model": MODEL, "prompt": [[5] * n for n in (64, 65, 129, 2000)], "max_tokens": 3}
        assert server.post("/v1/completions", body).sets == "to-64, to-128, to-2048, to-2048"
        assert server.get("/v1/rope").json["max_model_len"] == 2048


@pytest.mark.full
def test_the_bundled_model_is_the_default(tmp_path: Path) -> None:
    with running(tmp_path, "--enforce-eager") as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        [model] = client.models.list()
        assert model.id == "longrope-mini"
        ladder = server.get("/v1/rope").json
        assert [each["max_length"] for each in ladder["sets"]] == [512, 1024, 32768, 262144]
        for pieces, name in ((5, "r1"), (15, "r2"), (200, "x64"), (700, "x512")):
            text = f"{OPENING}\n{FILLER * pieces}\n{statement('48213')}\n{FILLER * pieces}\nWhat is the pass key?"
            response = client.chat.completions.with_raw_response.create(
                model=model.id, messages=[{"role": "user", "content": text}], max_tokens=20, temperature=0
            )
            assert response.headers["x-rope-factor-set"] == name
            assert "48213" in response.parse().choices[0].message.content
