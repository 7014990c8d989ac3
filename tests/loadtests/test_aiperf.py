"""aiperf against a server, as docs/loadtests.md runs it: exact prompts as text, token ids and messages; answers kept."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ropeswitch.models import BUNDLED_MODEL
from tests.docs.pages import ROOT
from tests.passkey_tiny import FOLDER, SERVED
from tests.passkey_tiny.passkey import REPLY_TOKENS, found, make_prompt, prompt_ids
from tests.server.running import ENGINE, running

PROGRAM = ROOT / ".venv/aiperf/bin/aiperf"
LENGTHS = (60, 230, 700)  # below, across and above the limit of the first set


def replay(folder: Path, url: str, endpoint: str, payloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send the bodies, 100 ms apart; each request's line of the raw export, in their order."""
    folder.mkdir()
    lines = (json.dumps({"timestamp": 100 * at, "payload": payload}) for at, payload in enumerate(payloads))
    (folder / "requests.jsonl").write_text("".join(f"{line}\n" for line in lines))
    command = [str(PROGRAM), "profile", "--url", url, "--model", "passkey-tiny", "--tokenizer", str(BUNDLED_MODEL)]
    # Any tokenizer will do: the server counts.
    command += ["--use-server-token-count", "--endpoint-type", endpoint, "--streaming", "--ui", "none"]
    command += ["--input-file", "requests.jsonl", "--custom-dataset-type", "mooncake-trace", "--fixed-schedule"]
    command += ["--export-level", "raw", "--output-artifact-dir", "out"]
    # Offline, aiperf 0.13 takes a tokenizer's folder for a name on the hub.
    variables = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    exported = map(json.loads, (folder / "out/profile_export_raw.jsonl").read_text().splitlines())
    return sorted(exported, key=lambda line: payloads.index(line["payload"]))


def answer(line: dict[str, Any]) -> tuple[str, int]:
    """The text of an answer, and the prompt's tokens by the server's count."""
    packets = [packet["value"] for response in line["responses"] for packet in response["packets"]]
    events = [json.loads(packet) for packet in packets if packet != "[DONE]"]
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)
    [usage] = [event["usage"] for event in events if event.get("usage")]
    return text, usage["prompt_tokens"]


@pytest.mark.full
def test_it_sends_exact_prompts_and_keeps_the_answers(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    common = {
        "model": "passkey-tiny", "max_tokens": REPLY_TOKENS, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    chats = [make_prompt(tokenizer, length, length, chat=True) for length in LENGTHS]
    texts = [make_prompt(tokenizer, length, length, chat=False) for length in LENGTHS]
    as_ids = [common | {"prompt": prompt_ids(tokenizer, prompt)} for prompt, _ in texts]
    with running(tmp_path, *SERVED, *ENGINE) as server:
        plain = [*(common | {"prompt": prompt} for prompt, _ in texts), *as_ids]
        lines = replay(tmp_path / "completions", server.url, "completions", plain)
        lines += replay(tmp_path / "chat", server.url, "chat", [common | {"messages": prompt} for prompt, _ in chats])
    keys = [key for _, key in [*texts, *texts, *chats]]
    for line, key, length in zip(lines, keys, LENGTHS * 3, strict=True):
        text, counted = answer(line)
        assert found(text, key) and counted == length, (text, key, counted)
