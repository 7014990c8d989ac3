"""``ropeswitch patches``: lists the patches of vLLM, checks and records the installed release."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.model_patches.guard.fingerprints import FOLDER, Patch, RegistryError, fingerprint, symbols
from ropeswitch.model_patches.guard.records import PATCHES
from ropeswitch.model_patches.guard.registry import for_this_device, mismatches
from ropeswitch.model_patches.switch.releases import ONLY, RELEASES, installed, release


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]", server_patches: Sequence[Patch]
) -> None:
    """Add the command and its subcommands; each sets ``func``, which returns the exit code.

    This package knows only the patches of engines and workers; the API server's are an argument.
    """
    parser = subparsers.add_parser("patches", help="list and check what is patched in vLLM")
    commands = parser.add_subparsers(dest="patches_command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list every upstream symbol that is replaced, wrapped or subclassed")
    listing.set_defaults(func=partial(_list, server_patches))
    check = commands.add_parser("check", help="compare the installed vLLM with the recorded fingerprints")
    check.set_defaults(func=partial(_check, server_patches))
    record = commands.add_parser("record", help="write the installed vLLM's fingerprints into their JSON file")
    record.set_defaults(func=partial(_record, server_patches))


def table(server_patches: Sequence[Patch]) -> str:
    """Return the patches, then what each fingerprint guards, as Markdown tables; tests compare them with docs/patches.md."""
    rows = [(record, record.when) for record in PATCHES] + [(record, "API server") for record in server_patches]
    lines = ["| upstream symbol | kind | in play | file | tests |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{it.target}` | {it.kind} | {when}{_only(it.target)} | `{it.file}` | `{it.tests}` |" for it, when in rows
    ]
    guarded: dict[str, list[str]] = {}
    for path, wrong in dict.fromkeys(item for it, _ in rows for item in it.relies_on.items()):
        guarded.setdefault(wrong, []).append(f"`{path}`{_only(path)}")
    lines += ["", "| if it changed | fingerprint |", "| --- | --- |"]
    lines += [f"| {wrong} | {', '.join(paths)} |" for wrong, paths in guarded.items()]
    return "\n".join(lines)


def _only(path: str) -> str:
    return f" (vLLM {ONLY[path]})" if path in ONLY else ""


def _list(server_patches: Sequence[Patch], arguments: argparse.Namespace) -> int:
    print(table(server_patches))
    return 0


def _check(server_patches: Sequence[Patch], arguments: argparse.Namespace) -> int:
    records = (*for_this_device(), *server_patches)
    changed = mismatches(records)
    for line in changed.values():
        print(line)
    paths = symbols(records)
    same = sum(path not in changed for path in paths)
    print(f"{same} of {len(paths)} symbols are those of vLLM {release()} (installed: {' '.join(installed())})")
    return 1 if changed else 0


def _record(server_patches: Sequence[Patch], arguments: argparse.Namespace) -> int:
    name, version = installed()
    if version not in RELEASES:
        raise FactorError(f"the installed vLLM is {version}; add it to model_patches/switch/releases.py first")
    paths = symbols((*PATCHES, *server_patches))
    print(f"reading {len(paths)} symbols of {name} {version}", file=sys.stderr, flush=True)
    found, missing = {}, []
    for path in paths:
        try:
            found[path] = fingerprint(path)
        except RegistryError as error:
            missing.append(str(error))
    if missing:
        raise FactorError(f"nothing recorded: {'; '.join(missing)}")
    file = FOLDER / f"{version}.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for path in sorted(found.keys() | before.keys()):
        if found.get(path) != before.get(path):
            print(f"{path}: {before.get(path, 'not recorded')} -> {found.get(path, 'no longer relied on')}")
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(file)
    print(f"recorded {len(found)} symbols in {file}")
    return 0
