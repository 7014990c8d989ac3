"""Figures: upstream's for the same exchanges, and what is added to them."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.assertions import Slo
from ropeswitch.loadtests.client.bands import bands
from ropeswitch.loadtests.client.records import Exchange, Run, Store
from ropeswitch.loadtests.client.results import figures, is_good, ratios
from tests.loadtests.client.commands import loadtest, results, workload
from tests.loadtests.client.scripted import MODEL, Reply, Scripted, serving
from tests.passkey_tiny import FOLDER


def exchange(index: int, prompt: int = 100, **changes: Any) -> Exchange:
    made: dict[str, Any] = {
        "index": index, "kind": "chat", "prompt_tokens": prompt, "max_tokens": 9, "due": 1.0 * index,
        "sent": 1.0 * index + 0.01, "latency": 0.5, "status": "completed", "ttft": 0.1 + index / 100,
        "itl": (0.1, 0.1, 0.2), "output_tokens": 4,
    }  # fmt: skip
    return Exchange(**{**made, **changes})


def run(*exchanges: Exchange, repetition: int = 0) -> Run:
    return Run(f"r-{repetition}", "target", 2.0, None, repetition, 10.0, True, "", exchanges)


def test_upstreams_figures_are_all_there_and_the_same(tmp_path: Path) -> None:
    """Upstream's own benchmark and this one, on one server that answers evenly: the same keys, and the same counts."""
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.serve import TaskType, benchmark
    from vllm.tokenizers import get_tokenizer

    with serving(Scripted(lambda number, body: Reply(before=0.02, between=0.01))) as server:
        part = [{"kind": "text", "prompt": 100, "output": 44}]
        assert (
            loadtest(tmp_path, workload(tmp_path, mix=part, endpoint="completions"), server.url, "--slo", "ttft<9") == 0
        )
        upstream = asyncio.run(
            benchmark(
                task_type=TaskType.GENERATION, endpoint_type="openai", api_url=server.url + "/v1/completions",
                base_url=server.url, model_id=MODEL, model_name=MODEL,
                tokenizer=get_tokenizer(str(FOLDER)),
                input_requests=[SampleRequest("one two three", 3, 44) for _ in range(6)], logprobs=None,
                request_rate=float("inf"), burstiness=1.0, disable_tqdm=True, num_warmups=0, profile=False,
                selected_percentile_metrics=["ttft", "tpot", "itl", "e2el"], selected_percentiles=[90.0, 95.0, 99.0],
                ignore_eos=False, goodput_config_dict={"ttft": 9000.0}, max_concurrency=2, lora_modules=None,
                extra_headers=None, extra_body={"temperature": 0.0}, ready_check_timeout_sec=0,
            )
        )  # fmt: skip
    found = results(tmp_path)
    # What is about single requests is in requests.jsonl, as upstream leaves it out without --save-detailed.
    detailed = {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times"}
    detailed |= {"generated_texts", "errors"}
    assert upstream.keys() - detailed - found.keys() == {"rtfx"}
    for key in ("completed", "failed", "total_output_tokens"):
        assert found[key] == upstream[key], key


def test_figures_of_bands_are_those_of_their_requests() -> None:
    made = [exchange(index, prompt) for index, prompt in enumerate([50, 100, 150, 5000])]
    found = figures([run(*made)], bands("0-100,100-200,200-1k,1k-"), [], [])
    assert {name: inside["completed"] for name, inside in found["bands"].items()} == {
        "0-100": 2,
        "100-200": 1,
        "1k-": 1,
    }
    assert found["median_ttft_ms"] == pytest.approx(1000 * np.median([0.1, 0.11, 0.12, 0.13]))
    assert found["bands"]["1k-"]["p99_ttft_ms"] == pytest.approx(130)
    assert found["mean_tpot_ms"] == pytest.approx(
        1000 * np.mean([(0.5 - ttft) / 3 for ttft in (0.1, 0.11, 0.12, 0.13)])
    )
    assert found["total_token_throughput"] == pytest.approx((50 + 100 + 150 + 5000 + 16) / 10)
    assert found["median_lateness_ms"] == pytest.approx(10)
    assert found["median_ttft_due_ms"] == pytest.approx(found["median_ttft_ms"] + 10)


def test_repetitions_are_taken_together() -> None:
    first, second = run(exchange(0), exchange(1)), run(exchange(2), repetition=1)
    found = figures([first, second], bands("0-"), [], [])
    assert (found["completed"], found["duration"], found["request_throughput"]) == (3, 20.0, 3 / 20)
    assert found["max_concurrent_requests"] == 1


def test_only_completed_requests_have_latencies() -> None:
    made = [
        exchange(0),
        exchange(1, status="failed", ttft=9.0),
        exchange(2, status="cancelled"),
        exchange(3, status="interrupted"),
    ]
    found = figures([run(*made)], bands("0-"), [], [])
    assert [found[key] for key in ("completed", "failed", "cancelled", "interrupted")] == [1, 1, 1, 1]
    assert found["p99_ttft_ms"] == pytest.approx(100)
    nothing = figures([run(exchange(0, status="failed"))], bands("0-"), [Slo.parse("ttft<1")], [])
    assert nothing["p99_ttft_ms"] is None and nothing["good_share"] == 0 and nothing["request_goodput"] == 0


def test_goodput_is_by_the_objectives_of_the_band() -> None:
    slos = [Slo.parse("band=0-1k,ttft<0.105"), Slo.parse("band=1k-,ttft<9,tpot<0.13"), Slo.parse("e2el<1")]
    made = [exchange(0), exchange(1), exchange(2, 5000), exchange(3, 5000, latency=0.99)]
    assert [is_good(each, slos) for each in made] == [True, False, True, False]
    found = figures([run(*made)], bands("0-1k,1k-"), slos, [])
    assert (found["good_share"], found["request_goodput"]) == (0.5, 0.2)


def test_what_failed_is_not_good_and_whole_answers_are_judged_by_what_they_have() -> None:
    timed, both = [Slo.parse("ttft<9,tpot<9")], [Slo.parse("ttft<9,e2el<0.4")]
    whole = exchange(0, streamed=False, ttft=None, itl=())
    assert [is_good(each, timed) for each in (whole, exchange(1, status="failed"), exchange(2))] == [None, False, True]
    assert is_good(whole, both) is False
    found = figures([run(whole, exchange(1, status="failed"), exchange(2))], bands("0-"), timed, [])
    assert (found["good_share"], found["request_goodput"]) == (0.5, 0.1)


def test_answers_in_one_chunk_have_no_gaps() -> None:
    found = figures([run(exchange(0, itl=()), exchange(1, itl=()))], bands("0-"), [], [])
    assert found["p99_itl_ms"] is None and found["p99_tpot_ms"] > 0


def test_crossings_are_of_sequences_that_outgrow_a_set() -> None:
    """The last token is never computed: 97 and 4 tokens of answer make a sequence of 100."""
    made = [
        exchange(0, 97),
        exchange(1, 98),
        exchange(2, 100),
        exchange(3, 101),
        exchange(4, 90, counted_prompt_tokens=99),
    ]
    assert figures([run(*made)], bands("0-"), [], [100])["crossings"] == 3


def test_ratios_are_of_numbers() -> None:
    assert ratios({"a": 2.0, "b": None, "c": 1, "d": {}}, {"a": 4.0, "b": 1.0, "c": 0}) == {"a": 0.5}


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty and has no load test"):
        Store(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(UsageError, match="is not valid JSON"):
        Store(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"book.txt", "results.json"}


def test_an_interrupted_test_is_started_over_and_kept_until_then(tmp_path: Path) -> None:
    for name, text in (("results.json", '{"complete": false}'), ("requests.jsonl", "old\n")):
        (tmp_path / name).write_text(text)
    for _ in range(2):  # a second start that ends before its first request loses nothing
        store = Store(tmp_path)
        assert (tmp_path / "requests.jsonl").read_text() == "old\n" and (tmp_path / "results.json").exists()
    made = exchange(1, 100)
    store.keep(run(made), made)
    assert "old" not in (tmp_path / "requests.jsonl").read_text() and not (tmp_path / "results.json").exists()
    Store(tmp_path)
