"""Ranks that cannot share sequences are refused at the start, in one line, whichever process finds it."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.checkpoint import phi3_with_tokenizer
from tests.server.running import ENGINE, refused

FLAGS = [*ENGINE, "--port", "0", "--tensor-parallel-size", "2", "--decode-context-parallel-size", "2"]
STARTS: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "kv-heads": ({"num_key_value_heads": 2}, [], "greater than the model's total number of KV heads (2)"),
    "interleave": (
        {},
        ["--cp-kv-cache-interleave-size", "48"],
        "cp_kv_cache_interleave_size: 48 must divide block_size",
    ),
    "window": ({"sliding_window": 48}, [], "decode_context_parallel_size: 2: the model's sliding window of 48 tokens"),
    "fp8": ({}, ["--kv-cache-dtype", "fp8"], "kv_cache_dtype: 'fp8': the CPU attention"),
    "prefill": ({}, ["--prefill-context-parallel-size", "2"], "does not support: prefill context parallel"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", STARTS)
def test_refused(tmp_path: Path, name: str) -> None:
    shape, flags, message = STARTS[name]
    folder = phi3_with_tokenizer(tmp_path, **({"num_key_value_heads": 1} | shape))
    assert message in refused("serve", str(folder), *FLAGS, *flags)
