"""A server whose chat template shows its format of tool calls takes them without flags."""

import shutil
from pathlib import Path

import pytest

from ropeswitch.models import BUNDLED_MODEL
from tests.server.running import ENGINE, running

pytestmark = pytest.mark.full

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "tools": [TOOL], "tool_choice": "auto"}


@pytest.mark.parametrize(
    ("flags", "status"), [([], 200), (["--no-enable-auto-tool-choice"], 400)], ids=["default", "off"]
)
def test_tools_work_without_flags(tmp_path: Path, flags: list[str], status: int) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED_MODEL, folder)
    template = folder / "chat_template.jinja"
    template.write_text(
        "{% if tools %}<tool_call>{{ tools }}</tool_call>{% endif %}" + template.read_text(encoding="utf-8")
    )
    limits = ["--max-model-len", "2048", "--served-model-name", "m"]
    with running(tmp_path, str(folder), *ENGINE, *limits, *flags) as server:
        answer = server.post("/v1/chat/completions", {"model": "m", **BODY})
        assert answer.status == status, answer.text
        assert ("tool calls are parsed as hermes" in server.log.read_text()) == (status == 200)
