"""Checks the command line before vLLM is imported, which takes 15 s.

Every flag must be one of ours or of vLLM's, whose names are recorded by release: to record those of the installed one, run
``python -m ropeswitch.server.start.arguments``. Our own flags' values are checked too. vLLM's parser checks the rest.
"""

import json
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.ladders.choose import from_file
from ropeswitch.model_patches.switch.releases import release
from ropeswitch.server.start import flags
from ropeswitch.server.start.model_folder import check_model_folder

NAMES = Path(__file__).with_name("flag_names.json")


def check(argv: Sequence[str]) -> None:
    """Refuse unknown flags, invalid values of our own, and a MODEL that does not exist.

    Raises:
        UsageError: naming the flag, its value and what is allowed.
        FactorError: the same, for a ladder or factor file.
    """
    parser = flags.parser()
    words = full_names(argv, {*recorded_names()[release()], *parser._option_string_actions})
    try:
        args, _ = parser.parse_known_args(words)
    except UsageError as error:
        raise UsageError(str(error).removeprefix("argument ")) from error
    choice, _, _ = flags.ladder(args)
    if choice is not None and choice.path is not None:
        from_file(choice.path)
    model = argv[0] if argv and not argv[0].startswith("-") else args.model
    # Both flags may name the config of another folder.
    if model and not {"--config", "--hf-config-path"} & {word.partition("=")[0] for word in words}:
        check_model_folder(model)


def full_names(argv: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the arguments with each flag's full name: dashes for underscores, and unambiguous prefixes completed.

    Raises:
        UsageError: for an unknown flag.
    """
    words = []
    for word in argv:
        flag = word.partition("=")[0].partition(".")[0]
        if not flag.startswith("--") or flag == "--" or " " in flag:
            words.append(word)
            continue
        name = flag.replace("_", "-")
        found = [name] if name in names else [each for each in names if each.startswith(name)]
        if not found:
            raise UsageError(f"{name}: unknown flag; {_hint(name, names)}")
        if word.startswith("--config="):
            raise UsageError(f"{word}: vLLM ignores this form; write --config FILE")
        # vLLM's parser lists the matches of an ambiguous prefix.
        words.append((found[0] if len(found) == 1 else name) + word[len(flag) :])
    return words


def _hint(name: str, names: Collection[str]) -> str:
    near = get_close_matches(name, names, n=2, cutoff=0.75) or get_close_matches(name, names, n=1)
    return f"did you mean {' or '.join(near)}?" if near else "ropeswitch serve --help=all lists every flag"


def recorded_names() -> dict[str, list[str]]:
    """Return the names of each vLLM release's flags, those with two dashes."""
    names: dict[str, list[str]] = json.loads(NAMES.read_text(encoding="utf-8"))
    return names


def installed_names() -> list[str]:
    """Return the names of the installed vLLM's flags, those with two dashes."""
    from ropeswitch.server.app.vllm_adapter import stock_parser

    # Its actions lack the names that ``--help`` hides.
    return sorted(name for name in stock_parser()._option_string_actions if name.startswith("--"))


if __name__ == "__main__":
    names = recorded_names() | {release(): installed_names()}
    NAMES.write_text(json.dumps(names, indent=0, sort_keys=True) + "\n", encoding="utf-8")
