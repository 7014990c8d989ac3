"""The house: parts in layers, and the import graph of the product files, drawn from their syntax trees.

The picture and the table of docs/architecture.md define both. Every module of ``ropeswitch`` belongs to one part (the
longest matching prefix counts). A part imports itself and the parts of lower layers, never a part beside it or above it.
Imports inside functions, those for type checkers, and the names of our modules in strings (vLLM is given classes by name)
count like any other, but for BY_NAME.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ropeswitch"
FOLDERS = ("factors", "kernels", "model_patches", "server", "deploy", "models", "loadtests")

BY_NAME = "model_patches/switch/parts.py"
"""The one file that may name modules above its own in strings: parts that the core calls where they are switched on."""

_PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## Where things are\n")[1].split("\n## ")[0]
RANKS = {
    part.strip(): int(number)
    for number, row in re.findall(r"^ +(\d+) +\|(.*)\|", _PAGE, re.MULTILINE)
    for part in row.split("|")
}
"""The layer of each part; 0 is the ground."""
PARTS = {
    place.removesuffix("/").removesuffix(".py").replace("/", "."): part
    for part, places in re.findall(r"^\| ([a-z ]+) \| (`.*?) \|", _PAGE, re.MULTILINE)
    for place in re.findall(r"`([^`]+)`", places)
} | {"factors.__init__": "ladder"}
"""The part of each module or package, without ``ropeswitch.``."""


@dataclass(frozen=True)
class Import:
    """Line ``line`` (from 1) of ``file``, where module ``module`` names ``target``; both without ``ropeswitch.``.

    ``in_string`` says that a string holds the name.
    """

    file: str
    line: int
    module: str
    target: str
    in_string: bool = False

    def __str__(self) -> str:
        here, there = (f"{part} (layer {RANKS[part]})" for part in (part_of(self.module), part_of(self.target)))
        return f"{self.file}:{self.line}: {here} imports {self.target} of {there}"

    @property
    def goes_up(self) -> bool:
        """Whether it leads to a part beside or above its own."""
        if self.in_string and self.file == BY_NAME:
            return False
        here, there = part_of(self.module), part_of(self.target)
        return here != there and RANKS[there] >= RANKS[here]


def part_of(module: str) -> str:
    """The part that a module belongs to.

    Raises:
        KeyError: if no prefix of it is listed in docs/architecture.md.
    """
    names = module.split(".")
    for length in range(len(names), 0, -1):
        if (found := PARTS.get(".".join(names[:length]))) is not None:
            return found
    raise KeyError(f"{module}: no part of the house; add it to the table of docs/architecture.md")


def modules(root: Path) -> dict[str, Path]:
    """Every product module below ``root`` by its name without ``ropeswitch``; a package is ``name.__init__``."""
    files = (path for folder in FOLDERS for path in sorted(root.glob(f"{folder}/**/*.py")))
    return {".".join(path.relative_to(root).with_suffix("").parts): path for path in files}


def imports(root: Path = ROOT) -> list[Import]:
    """The import graph of the product modules below ``root``."""
    known = modules(root)
    found: dict[Import, None] = {}
    for module, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            in_string = isinstance(node, ast.Constant)
            for name in _spelled(node) if in_string else _imported(node, f"{PACKAGE}.{module}"):
                if (target := _module(name, known)) is not None:
                    line = getattr(node, "lineno", 0)
                    found[Import(path.relative_to(root).as_posix(), line, module, target, in_string)] = None
    return list(found)


def circles(root: Path = ROOT) -> list[str]:
    """The modules in circles of imports among the product modules below ``root``; modules that strings name do not count."""
    graph: dict[str, set[str]] = {module: set() for module in modules(root)}
    for each in imports(root):
        if not each.in_string and each.target != each.module:
            graph[each.module].add(each.target)
    # A module that imports nothing left, or is imported by nothing left, is in no circle.
    before = None
    while before != len(graph):
        before = len(graph)
        imported = {target for targets in graph.values() for target in targets}
        graph = {module: targets & graph.keys() for module, targets in graph.items() if module in imported}
        graph = {module: targets & graph.keys() for module, targets in graph.items() if targets & graph.keys()}
    return sorted(graph)


def outside(path: Path) -> set[str]:
    """The top-level packages, other than ours, that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {name.split(".")[0] for node in ast.walk(tree) for name in _imported(node, "")} - {PACKAGE}


def without_user(root: Path = ROOT) -> list[str]:
    """Product modules that no other one imports or names, and no entry point, build file, chart or page runs."""
    used = {each.target for each in imports(root) if each.target != each.module}
    callers = [root / name for name in ("pyproject.toml", "Makefile", "Dockerfile", "README.md")]
    callers += [*root.glob("docs/*.md"), *root.glob("deploy/helm/ropeswitch/templates/**/*")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in callers if path.is_file())
    run = {name.replace(":", ".") for name in re.findall(rf"\b{PACKAGE}\.([\w.:]+)", text)}
    return [
        module
        for module, path in modules(root).items()
        if path.name != "__init__.py"
        and module not in used
        and not any(f"{name}.".startswith(f"{module.removesuffix('.__main__')}.") for name in run)
        and f"files/{path.name}" not in text
    ]


def _spelled(node: ast.AST) -> Iterator[str]:
    """The dotted name of one of our modules that a string spells out."""
    value = getattr(node, "value", None)
    if isinstance(value, str) and value.startswith(f"{PACKAGE}."):
        yield value.replace(":", ".")


def _imported(node: ast.AST, module: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
        yield from (f"{base}.{each.name}" for each in node.names)


def _module(name: str, known: dict[str, Path]) -> str | None:
    """The module that a dotted name is, or lies in; None if it is none of ours."""
    package, *names = name.split(".")
    for length in range(len(names), 0, -1) if package == PACKAGE else ():
        module = ".".join(names[:length])
        for found in (module, f"{module}.__init__"):
            if found in known:
                return found
    return None
