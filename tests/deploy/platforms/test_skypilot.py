"""deploy/skypilot against SkyPilot's own schemas, and its command."""

import os
import subprocess
from pathlib import Path

import jsonschema
import pytest

from ropeswitch.model_patches.switch.config import variables
from tests.deploy.platforms.rendered import FILES, IMAGE, read
from tests.deploy.platforms.schemas import check_schema
from tests.serve_parser import serve_parser


def test_skypilot_takes_it() -> None:
    [task] = read(FILES / "skypilot" / "service.yaml")
    check_schema(task, "skypilot-task")
    assert task["resources"]["image_id"].startswith(f"docker:{IMAGE}:")
    task["service"]["probe"] = "/health"
    with pytest.raises(jsonschema.ValidationError, match="probe"):
        check_schema(task, "skypilot-task")


def test_its_command_serves_at_the_port_that_it_opens(tmp_path: Path) -> None:
    [task] = read(FILES / "skypilot" / "service.yaml")
    (tmp_path / "ropeswitch").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    (tmp_path / "ropeswitch").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", task["run"]], env=task["envs"] | path, capture_output=True, text=True, check=True
    )
    command, *words = done.stdout.splitlines()
    found = serve_parser().parse_args(words)
    assert (command, found.model_tag, found.max_model_len) == ("serve", "Qwen/Qwen3-8B", 131072)
    assert found.port == task["resources"]["ports"]
    assert variables.read(task["envs"]) == {"ladder": "auto"}
    assert task["service"]["readiness_probe"]["path"] == "/health/ready"
