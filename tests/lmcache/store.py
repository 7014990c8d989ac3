"""LMCache's server as a process, and engines whose connector uses it."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from vllm import LLM
from vllm.config import KVTransferConfig

from tests.exactness.engines import first_choice, greedy, scheduler_of
from tests.exactness.reference import Oracle
from tests.server.running import free_port

# Tokens of a chunk, and of vLLM's block.
CHUNK = 32


class Store:
    """An LMCache server with a small store in memory."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        command = [sys.executable, "-m", "lmcache.v1.multiprocess.server", *address]
        command += ["--chunk-size", str(CHUNK), "--l1-size-gb", "0.1", "--eviction-policy", "LRU"]
        command += ["--supported-transfer-mode", "engine_driven", "--disable-observability"]
        with log.open("w") as out:
            environment = os.environ | {"LMCACHE_TRACK_USAGE": "false"}
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        deadline = time.monotonic() + 120
        while not self._listens():
            assert self.process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def config(self) -> KVTransferConfig:
        """What an engine that uses the server is configured with; it waits seconds for a server that is gone."""
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port}
        extra |= {"lmcache.mp.mq_timeout": 5.0, "lmcache.mp.heartbeat_interval": 1.0}
        return KVTransferConfig(
            kv_connector="LMCacheMPConnector", kv_role="kv_both", kv_connector_extra_config=extra,
            kv_load_failure_policy="recompute",
        )  # fmt: skip


class Lookups:
    """Records what the engine's connector finds: each request's set and the tokens to load, in order."""

    def __init__(self, llm: LLM) -> None:
        self.found: list[tuple[int, int]] = []
        scheduler = scheduler_of(llm)
        connector = scheduler.connector
        upstream = connector.get_num_new_matched_tokens

        def recording(request: Any, num_computed_tokens: int) -> Any:
            answer = upstream(request, num_computed_tokens)
            if answer[0] is not None:
                self.found.append((scheduler.placements[request.request_id].index, answer[0]))
            return answer

        connector.get_num_new_matched_tokens = recording


def hits(llm: LLM, reference: Oracle, prompts: list[Any], max_tokens: int = 4) -> list[int]:
    """Check one batch of prompts, or of prompts and clients' ``cache_salt``; returns each prompt's cached tokens."""
    pairs = [prompt if isinstance(prompt, tuple) else (prompt, None) for prompt in prompts]
    inputs = [{"prompt_token_ids": tokens} | ({"cache_salt": salt} if salt else {}) for tokens, salt in pairs]
    outputs = llm.generate(inputs, greedy(max_tokens), use_tqdm=False)
    for (tokens, _), output in zip(pairs, outputs, strict=True):
        reference.check(tokens, *first_choice(output.outputs[0]))
    return [output.num_cached_tokens for output in outputs]
