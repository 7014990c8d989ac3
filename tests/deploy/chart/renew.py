"""Write the golden files anew: `make chart-golden`, then read what git says has changed.

For the next version of the chart it also keeps this one's default values, and what an upgrade must not change.
"""

import hashlib
import json
from typing import Any

import yaml

from tests.deploy.chart.helm import CASES, CHART, HERE, Object, case, chart, files, render

# Other values files have tests of their own for what they add.
GOLDEN = ("everything", "minimal", "single-node", "two-nodes")


def golden(name: str) -> str:
    """What a values file renders to.

    Left out are dashboards, alerts and the text of the pass-key test's script, which have tests of their own.
    """
    left_out = ("templates/dashboards.yaml", "templates/prometheusrule.yaml")
    script = (CHART / "files" / "passkey.py").read_text(encoding="utf-8").replace("\n", "\n    ")
    return "".join(
        f"# {path}\n{text.strip()}\n".replace(script, "(files/passkey.py)")
        for path, text in sorted(files(case(name)).items())
        if path not in left_out
    )


def kept(objects: list[Object]) -> dict[str, Any]:
    """What Kubernetes lets no upgrade change of each object, and hashes of the pods, which a change would replace."""
    found: dict[str, Any] = {}
    for each in objects:
        spec, name = each.get("spec", {}), f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Deployment":
            found[name] = {"selector": spec["selector"], "pod": digest(spec["template"])}
        elif each["kind"] == "LeaderWorkerSet":
            template = spec["leaderWorkerTemplate"]
            found[name] = {"size": template["size"], "leader": digest(template["leaderTemplate"])}
            found[name] |= {"worker": digest(template["workerTemplate"])}
        elif each["kind"] == "PersistentVolumeClaim":
            found[name] = spec
        elif each["kind"] == "Service":
            found[name] = {"type": spec["type"], "selector": spec["selector"]}
    return found


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def release() -> None:
    """Keep this version for the next."""
    folder = HERE / "released" / chart().version
    folder.mkdir(exist_ok=True)
    (folder / "values.yaml").write_text(defaults(), encoding="utf-8")
    cases = {name: {"values": case(name), "kept": kept(render(case(name)))} for name in CASES}
    (folder / "cases.json").write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8")


def defaults() -> str:
    """values.yaml without its comments."""
    return yaml.safe_dump(dict(chart().values), sort_keys=False)


if __name__ == "__main__":
    (CHART / "files" / "defaults.yaml").write_text(defaults(), encoding="utf-8")
    release()
    for name in GOLDEN:
        (HERE / "golden" / f"{name}.yaml").write_text(golden(name), encoding="utf-8")
