"""KV events tell the blocks of different factor sets apart, for routers that rebuild the prefix cache from them."""

from pathlib import Path
from typing import Any

import msgspec
import zmq
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import BlockStored, KVEventBatch

from tests.exactness.batches import Start
from tests.exactness.engines import greedy, prompts

# A block's tokens, extra keys, and its parent's key.
Key = tuple[Any, ...]


class Router:
    """Rebuilds the tree of cached blocks from events, by tokens and extra keys, as KV-aware routers do."""

    def __init__(self, endpoint: str) -> None:
        self.keys: dict[Any, Key | None] = {None: None}
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(endpoint)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")

    def read(self) -> None:
        """Take what was published, until nothing comes for a second."""
        while self._socket.poll(1000):
            *_, payload = self._socket.recv_multipart()
            for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
                if isinstance(event, BlockStored):
                    self._store(event)

    def _store(self, event: BlockStored) -> None:
        key = self.keys[event.parent_block_hash]
        extra_keys = event.extra_keys or [None] * len(event.block_hashes)
        for index, (block, extra) in enumerate(zip(event.block_hashes, extra_keys, strict=True)):
            tokens = event.token_ids[index * event.block_size : (index + 1) * event.block_size]
            key = (key, tuple(tokens), extra and tuple(extra))
            self.keys[block] = key

    def close(self) -> None:
        self._socket.close(0)


def test_sets_are_told_apart(start: Start, phi3: Path, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/events"
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint)
    llm = start(phi3, enable_prefix_caching=True, kv_events_config=events)
    router = Router(endpoint)
    # A subscriber misses what is published before it has connected.
    seeds = iter(range(100, 200))
    while len(router.keys) == 1:
        llm.generate([{"prompt_token_ids": prompts([40], seed=next(seeds))[0]}], greedy(1), use_tqdm=False)
        router.read()
    before = set(router.keys)
    (long,) = prompts([160], seed=11)
    (crossing,) = prompts([60], seed=12)
    # A prefix in the short set, the same in the long one, and a request that moves from one to the other.
    for prompt, count in ((long[:64], 1), (long, 1), (crossing, 20)):
        llm.generate([{"prompt_token_ids": prompt}], greedy(count), use_tqdm=False)
    router.read()
    router.close()
    blocks = {block: key for block, key in router.keys.items() if block not in before}
    # No two blocks that the engine keeps apart are one to the router.
    assert len(blocks) == len(set(blocks.values()))
    size = len(next(iter(blocks.values()))[1])  # type: ignore[index]
    for prompt in (long, crossing):
        first = [key for key in blocks.values() if key and key[:2] == (None, tuple(prompt[:size]))]
        sets = {extra for key in first for extra in key[2]}
        assert len(first) == len(sets) == 2 and all(extra.startswith("rope_set:") for extra in sets)
