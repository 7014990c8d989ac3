"""Reads ``patches.toml``: the upstream symbols that an engine's patches replace, wrap or subclass, and what they rely on."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropeswitch.model_patches.guard.fingerprints import Patch

# Conditions of patches for engines with that connector, and with Qwen 4's sparse attention.
NIXL_ONLY, QWEN4_ONLY = "NIXL", "Qwen 4 on GPUs"
# Device type by condition; on other devices these patches' upstream modules must not even be imported.
ON_CPUS = ("CPUs", "V1 runner on CPUs", "decode context parallel on CPUs")
DEVICES = dict.fromkeys(ON_CPUS, "cpu") | {"GPUs": "cuda", QWEN4_ONLY: "cuda"}


def _patch(guards: Mapping[str, list[str]] | None = None, overrides: tuple[str, ...] = (), **fields: Any) -> Patch:
    relies_on = {path: wrong for wrong, paths in (guards or {}).items() for path in paths}
    return Patch(**fields, overrides=tuple(overrides), relies_on=relies_on)


_TABLE = tomllib.loads(Path(__file__).with_name("patches.toml").read_text(encoding="utf-8"))
PATCHES = tuple(_patch(**each) for each in _TABLE["patch"])
