"""Whether objects are what Kubernetes, or the operator that owns their kind, takes; unknown fields are refused."""

import gzip
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
    packed = _CRDS / f"{kind.lower()}.json.gz"
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else packed.with_suffix("").read_bytes()
    return jsonschema.Draft7Validator(json.loads(data))


def check(each: Object, version: str) -> None:
    """Check an object as Kubernetes ``version``, such as 1.30, would.

    Raises:
        jsonschema.ValidationError: when it would be refused.
    """
    kind = each["kind"]
    if not any(_CRDS.glob(f"{kind.lower()}.json*")):
        kubernetes_validate.validate(each, version, strict=True)
        return
    if (error := jsonschema.exceptions.best_match(_crd(kind).iter_errors(each))) is not None:
        raise error
    if kind == "LeaderWorkerSet":
        template = each["spec"]["leaderWorkerTemplate"]
        for name in ("leaderTemplate", "workerTemplate"):
            kubernetes_validate.validate(
                {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template[name]},
                version,
                strict=True,
            )
