"""deploy/compose against the Compose Specification, and what its services are given."""

import re
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.model_patches.switch.config import variables
from tests.deploy.monitoring.files import ALERTS, BOARD, DASHBOARD, SCOPE
from tests.deploy.platforms.files import FILES, IMAGE, check_schema, read

HERE = FILES / "compose"


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    found: dict[str, Any] = read("compose", name)
    return found


def mounted(service: str) -> dict[str, Path]:
    """Return what a service mounts, by its place in the container."""
    mounts = (mount.split(":") for mount in compose()["services"][service]["volumes"])
    return {target: (HERE / source).resolve() for source, target, *_ in mounts}


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_the_specification_accepts_it(name: str) -> None:
    each = compose(name)
    check_schema(each, "compose")
    assert each["services"]["server"]["image"].startswith(f"${{ROPESWITCH_IMAGE:-{IMAGE}:0.1.0")


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
    assert mounted("grafana")[provider["options"]["path"]] == DASHBOARD.parent
    # The board lets the user choose among data sources of this type, and takes the default one.
    chosen = BOARD["templating"]["list"][0]
    assert (chosen["type"], chosen["query"]) == ("datasource", source["type"])


def test_prometheus_scrapes_the_server_and_has_its_alerts() -> None:
    config = read("compose", "prometheus.yml")
    assert mounted("prometheus")["/etc/prometheus/prometheus.yml"] == HERE / "prometheus.yml"
    assert [mounted("prometheus")[f"/etc/prometheus/{name}"] for name in config["rule_files"]] == [ALERTS]
    [job] = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:8000"]}] and "metrics_path" not in job
    assert re.fullmatch(SCOPE.removeprefix("job=~").strip('"'), job["job_name"])
