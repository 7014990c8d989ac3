"""deploy/compose against the Compose Specification; its server and its Prometheus are started, piece by piece."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ropeswitch.model_patches.switch.config import variables
from ropeswitch.models import BUNDLED_MODEL
from tests.deploy.monitoring.files import rules
from tests.deploy.platforms.files import FILES, IMAGE, check_schema, read
from tests.docs.pages import ROOT
from tests.server.running import running
from tests.server.test_prometheus import FOLDER as PROMETHEUS
from tests.server.test_prometheus import prometheus, value, wait_for

HERE = FILES / "compose"


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    found: dict[str, Any] = read("compose", name)
    return found


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_the_specification_accepts_it(name: str) -> None:
    each = compose(name)
    check_schema(each, "compose")
    assert each["services"]["server"]["image"].startswith(f"${{ROPESWITCH_IMAGE:-{IMAGE}:0.1.0")
    each["services"]["server"]["memory"] = 1
    with pytest.raises(jsonschema.ValidationError, match="memory"):
        check_schema(each, "compose")


def test_the_server_is_confined_its_mounts_exist_and_nothing_is_open_to_the_network() -> None:
    found = compose()
    services, volumes = found["services"], set(found["volumes"])
    server = services["server"]
    assert server["read_only"] and server["cap_drop"] == ["ALL"] and int(server["user"].split(":")[0]) > 0
    assert server["security_opt"] == ["no-new-privileges:true"]
    written = {mount.split(":")[0] for mount in server["tmpfs"]} | {mount.split(":")[1] for mount in server["volumes"]}
    assert written == {"/tmp", "/cache"}
    for each in services.values():
        assert all(port.startswith("127.0.0.1:") for port in each["ports"])
        for mount in each["volumes"]:
            source = mount.split(":")[0]
            assert source in volumes or ((HERE / source).resolve().exists() and mount.endswith(":ro")), mount
    # Its variables are none that turn anything on or are unknown.
    assert variables.read(dict.fromkeys(server["environment"], "x")) == {}


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    [source] = read("compose", "grafana", "datasources.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090" and source["isDefault"] and source["type"] == "prometheus"
    [provider] = read("compose", "grafana", "dashboards.yaml")["providers"]
    mounts = {
        target: source for source, target, *_ in (m.split(":") for m in compose()["services"]["grafana"]["volumes"])
    }
    [board] = (HERE / mounts[provider["options"]["path"]]).resolve().glob("*.json")
    asked = json.loads(board.read_text(encoding="utf-8"))["templating"]["list"]
    # The board lets the user choose among data sources of this type, and takes the default one.
    assert {"datasource", "prometheus"} == {next(each["type"] for each in asked), source["type"]}


@pytest.mark.full
def test_prometheus_scrapes_the_server_by_its_own_file(tmp_path: Path) -> None:
    """The image's entry point without a model, and Debian's Prometheus with the mounted files at another address."""
    services = compose()["services"]
    assert services["server"]["command"] == "${ROPESWITCH_ARGUMENTS:-}"
    config = read("compose", "prometheus.yml")
    [job] = config["scrape_configs"]
    [static] = job["static_configs"]
    assert static["targets"] == ["server:8000"]
    config["global"]["scrape_interval"] = "1s"
    for mount in services["prometheus"]["volumes"]:
        source, target, *_ = mount.split(":")
        if target.endswith("alerts.yaml"):
            (tmp_path / Path(target).name).write_bytes((HERE / source).read_bytes())
    entry = ROOT / "deploy" / "image" / "entrypoint.sh"
    path = {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    with running(tmp_path, "--enforce-eager", command=[str(entry)], variables=path) as server:
        static["targets"] = [server.url.removeprefix("http://")]
        with prometheus(tmp_path, config) as ask:
            wait_for(ask, "count(ropeswitch_remaining_prefill_seconds)", 1)
            [sample] = ask("ropeswitch_remaining_prefill_seconds")
            assert sample["metric"]["job"] == "ropeswitch" and sample["metric"]["model_name"] == BUNDLED_MODEL.name
            assert value(ask, "up") == 1
    assert server.process.returncode == 0
    check = [PROMETHEUS / "promtool", "check", "config", tmp_path / "prometheus.yml"]
    output = subprocess.run(check, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"\b{len(rules())} rules found", output), output
