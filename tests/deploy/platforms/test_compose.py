"""deploy/compose against the Compose Specification; its server and its Prometheus are started, piece by piece."""

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ropeswitch.model_patches.switch import variables
from ropeswitch.models import BUNDLED_MODEL
from tests.deploy.monitoring.files import rules
from tests.deploy.platforms.rendered import FILES, IMAGE, read
from tests.deploy.platforms.schemas import check_schema
from tests.docs.pages import ROOT
from tests.server.running import environment, free_port
from tests.server.test_prometheus import FOLDER as PROMETHEUS

HERE = FILES / "compose"


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    [found] = read(HERE / name)
    return found


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_the_specification_takes_it(name: str) -> None:
    each = compose(name)
    check_schema(each, "compose")
    assert each["services"]["server"]["image"].startswith(f"${{ROPESWITCH_IMAGE:-{IMAGE}:0.1.0")
    each["services"]["server"]["memory"] = 1
    with pytest.raises(jsonschema.ValidationError, match="memory"):
        check_schema(each, "compose")


def test_every_file_and_volume_that_is_mounted_exists() -> None:
    found = compose()
    named = set(found["volumes"])
    for service in found["services"].values():
        for mount in service["volumes"]:
            source, target, *_ = mount.split(":")
            assert source in named or (HERE / source).resolve().exists(), mount
            assert source in named or mount.endswith(":ro"), mount
            assert target.startswith("/")


def test_the_server_is_confined_and_nothing_is_open_to_the_network() -> None:
    services = compose()["services"]
    server = services["server"]
    assert server["read_only"] and server["cap_drop"] == ["ALL"] and int(server["user"].split(":")[0]) > 0
    assert server["security_opt"] == ["no-new-privileges:true"]
    written = {mount.split(":")[0] for mount in server["tmpfs"]} | {mount.split(":")[1] for mount in server["volumes"]}
    assert written == {"/tmp", "/cache"}
    assert all(port.startswith("127.0.0.1:") for each in services.values() for port in each["ports"])
    # Its variables are none that turn anything on or are unknown.
    assert variables.read(dict.fromkeys(server["environment"], "x")) == {}


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    [sources] = read(HERE / "grafana" / "datasources.yaml")
    [source] = sources["datasources"]
    assert source["url"] == "http://prometheus:9090" and source["isDefault"] and source["type"] == "prometheus"
    [providers] = read(HERE / "grafana" / "dashboards.yaml")
    [provider] = providers["providers"]
    grafana = compose()["services"]["grafana"]
    mounts = {target: source for source, target, *_ in (mount.split(":") for mount in grafana["volumes"])}
    boards = (HERE / mounts[provider["options"]["path"]]).resolve()
    [board] = boards.glob("*.json")
    asked = json.loads(board.read_text(encoding="utf-8"))["templating"]["list"]
    # The board lets the user choose among data sources of this type, and takes the default one.
    assert {"datasource", "prometheus"} == {next(each["type"] for each in asked), source["type"]}


@pytest.mark.full
def test_prometheus_scrapes_the_server_by_its_own_file(tmp_path: Path) -> None:
    """The image's entry point without a model, and Debian's Prometheus with the mounted files at another address."""
    services = compose()["services"]
    assert services["server"]["command"] == "${ROPESWITCH_ARGUMENTS:-}"
    port, own = free_port(), free_port()
    [config] = read(HERE / "prometheus.yml")
    [job] = config["scrape_configs"]
    [static] = job["static_configs"]
    assert static["targets"] == ["server:8000"]
    static["targets"] = [f"127.0.0.1:{port}"]
    config["global"]["scrape_interval"] = "1s"
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    for mount in services["prometheus"]["volumes"]:
        source, target, *_ = mount.split(":")
        if target.endswith("alerts.yaml"):
            (tmp_path / Path(target).name).write_bytes((HERE / source).read_bytes())
    command = [PROMETHEUS / "prometheus", f"--config.file={tmp_path / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{own}"]
    entry = ROOT / "deploy" / "image" / "entrypoint.sh"
    path = {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    with (tmp_path / "log").open("wb") as log:
        started = [
            subprocess.Popen(
                [entry, "--port", str(port), "--enforce-eager"],
                env=environment() | path, stdout=log, stderr=log, cwd=tmp_path,
            ),
            subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path),
        ]  # fmt: skip

    def ask(route: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{own}/api/v1/{route}", timeout=30) as answer:
            return json.load(answer)["data"]

    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                if ask("query?query=ropeswitch_remaining_prefill_seconds")["result"]:
                    break
            except OSError:
                pass  # it has not started yet
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
            time.sleep(1)
        [sample] = ask("query?query=ropeswitch_remaining_prefill_seconds")["result"]
        assert sample["metric"]["job"] == "ropeswitch" and sample["metric"]["model_name"] == BUNDLED_MODEL.name
        [up] = ask("query?query=up")["result"]
        assert up["value"][1] == "1"
        loaded = [rule["name"] for group in ask("rules")["groups"] for rule in group["rules"]]
        assert sorted(loaded) == sorted(rule.get("alert") or rule["record"] for rule in rules())
    finally:
        for process in started:
            process.terminate()
        assert [process.wait(60) for process in started] == [0, 0]
