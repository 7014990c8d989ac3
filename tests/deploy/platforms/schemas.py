"""Schemas of platforms that are no CRDs, in the folder of this name; each names its source and its licence."""

import json
from pathlib import Path
from typing import Any

import jsonschema

_FOLDER = Path(__file__).parent / "schemas"


def check_schema(value: Any, name: str) -> None:
    """Check a value against a platform's schema.

    Raises:
        jsonschema.ValidationError: when the platform would refuse it.
    """
    schema = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.validate(value, schema)
