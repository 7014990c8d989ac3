"""Whether objects are what Kubernetes, or the operator that owns their kind, takes; unknown fields are refused."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

from tests.deploy.chart.helm import Object

_CRDS = Path(__file__).parent / "crds"


@cache
def _crd(kind: str) -> Any:
    return json.loads((_CRDS / f"{kind.lower()}.json").read_text(encoding="utf-8"))


def check(each: Object, version: str) -> None:
    """Check an object as Kubernetes ``version``, such as 1.30, would.

    Raises:
        jsonschema.ValidationError: when it would be refused.
    """
    kind = each["kind"]
    if not (_CRDS / f"{kind.lower()}.json").exists():
        kubernetes_validate.validate(each, version, strict=True)
        return
    jsonschema.validate(each, _crd(kind))
    if kind == "LeaderWorkerSet":
        template = each["spec"]["leaderWorkerTemplate"]
        for name in ("leaderTemplate", "workerTemplate"):
            kubernetes_validate.validate(
                {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template[name]},
                version,
                strict=True,
            )
