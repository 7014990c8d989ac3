"""A prefill server, a decode server and the proxy before them, and what the tests ask of them."""

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.disaggregation.proxy import prefill_body, proxying
from tests.server.running import ENGINE, FORKED, PROGRAM, Answer, Server, free_port, running

MODEL = "tiny"
PATH = "/v1/completions"
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
# Seconds for which blocks are kept that nobody has fetched.
LEASE = 12


@dataclass(frozen=True)
class Pair:
    """Two servers, and the proxy before them, which logs to the second's."""

    prefill: Server
    decode: Server
    proxy: Server


@contextmanager
def server(
    folder: Path, checkpoint: Path, role: str, *flags: str, core: int = 0, variables: dict[str, str] | None = None,
    **transfer: Any,
) -> Iterator[Server]:  # fmt: skip
    """Start one server; ``transfer`` goes into its ``--kv-transfer-config``."""
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": ROLES[role],
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE},
    } | transfer
    folder.mkdir()
    arguments = [str(checkpoint), "--served-model-name", MODEL, *ENGINE, "--block-size", "32"]
    # Python's path is for what has to be there before vLLM is imported.
    command = PROGRAM if variables and "PYTHONPATH" in variables else FORKED
    with running(
        folder, *arguments, "--kv-transfer-config", json.dumps(config), *flags, command=command,
        variables={
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            # Threads of two engines on the same cores would wait for each other.
            "VLLM_CPU_OMP_THREADS_BIND": str(core),
            "PYTHONPATH": os.pathsep.join((str(Path(__file__).with_name("calm")), os.environ["PYTHONPATH"])),
        } | (variables or {}),
    ) as started:  # fmt: skip
        yield started


@contextmanager
def pair(folder: Path, checkpoint: Path, *flags: str, **variables: str) -> Iterator[Pair]:
    """Start both servers at once, and the proxy."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        opened = [
            server(folder / role, checkpoint, role, *flags, core=core, variables=variables)
            for core, role in enumerate(ROLES)
        ]
        for each in opened:
            stack.push(each.__exit__)
        prefill, decode = pool.map(lambda each: each.__enter__(), opened)
        url = stack.enter_context(proxying(prefill.url, decode.url))
        yield Pair(prefill, decode, Server(url, decode.log, decode.process))


def body(prompt: list[int], count: int = 12, **changes: Any) -> dict[str, Any]:
    """A greedy completion request for the tokens and their log-probabilities."""
    return {
        "model": MODEL, "prompt": prompt, "max_tokens": count, "temperature": 0, "logprobs": 1, "return_token_ids": True,
        "ignore_eos": True, **changes,
    }  # fmt: skip


def first_choice(answer: Answer) -> tuple[list[int], list[float]]:
    """The tokens of an answer and their log-probabilities."""
    assert answer.status == 200, answer.text
    choice = answer.json["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def metric(server: Server, name: str) -> float:
    """The sum of a metric over its labels."""
    found = re.findall(rf"^vllm:{name}{{.*}} (\S+)$", server.get("/metrics").text, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def fetched(server: Server) -> float:
    """Tokens whose blocks a decode server has fetched."""
    return metric(server, "external_prefix_cache_hits_total")


def transfer(prefill: Server, prompt: list[int]) -> dict[str, Any]:
    """Return the KV transfer parameters that a prefill server gives for a prompt."""
    answer: Answer = prefill.post(PATH, prefill_body(body(prompt)))
    params: dict[str, Any] = answer.json["kv_transfer_params"]
    assert params["rope_seal"]
    return params
