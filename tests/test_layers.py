"""Three people can hold the house: no import goes up, none goes in a circle, and every module is used.

The picture and the table of docs/architecture.md define its parts and their layers. Every module of ``ropeswitch`` belongs
to one part (the longest matching prefix counts). A part imports itself and the parts of lower layers, never a part beside it
or above it. Imports inside functions, those for type checkers, and names of our modules in strings (vLLM is given classes by
name) count like any other, but for BY_NAME.
"""

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter

from tests.docs.pages import ROOT

PACKAGE = "ropeswitch"
FOLDERS = ("factors", "kernels", "model_patches", "server", "deploy", "models", "loadtests")
# The one module that may name modules above its own in strings: parts that the core calls where they are switched on.
BY_NAME = "model_patches.switch.parts"

_PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## Where things are\n")[1].split("\n## ")[0]
# The layer of each part; 0 is the ground.
RANKS = {
    part.strip(): int(number)
    for number, row in re.findall(r"^ +(\d+) +\|(.*)\|", _PAGE, re.MULTILINE)
    for part in row.split("|")
}
# The part of each module or package, without `ropeswitch.`.
PARTS = {
    place.removesuffix("/").removesuffix(".py").replace("/", "."): part
    for part, places in re.findall(r"^\| ([a-z ]+) \| (`.*?) \|", _PAGE, re.MULTILINE)
    for place in re.findall(r"`([^`]+)`", places)
} | {"factors.__init__": "ladder"}
# Every product module by its name without `ropeswitch`; a package is `name.__init__`.
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for folder in FOLDERS
    for path in sorted(ROOT.glob(f"{folder}/**/*.py"))
}


def _prefixes(name: str) -> list[str]:
    names = name.split(".")
    return [".".join(names[:length]) for length in range(len(names), 0, -1)]


def part_of(module: str) -> str:
    """The part that a module belongs to."""
    found = [PARTS[name] for name in _prefixes(module) if name in PARTS]
    assert found, f"{module}: no part of the house; add it to the table of docs/architecture.md"
    return found[0]


def imported(node: ast.AST, module: str) -> Iterator[str]:
    """The dotted names that an import statement of a module imports."""
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = f"{PACKAGE}.{module}".split(".")[: -node.level] if node.level else []
        base = ".".join([*package, *([node.module] if node.module else [])])
        yield from (f"{base}.{each.name}" for each in node.names)


def edges() -> Iterator[tuple[str, str, bool]]:
    """Every module, one of ours that it names, and whether a string names it."""
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            in_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
            names = [str(node.value).replace(":", ".")] if in_string else imported(node, module)  # type: ignore[attr-defined]
            for name in names:
                if name.startswith(f"{PACKAGE}."):
                    places = _prefixes(name.removeprefix(f"{PACKAGE}."))
                    found = [each for place in places for each in (place, f"{place}.__init__") if each in MODULES]
                    yield from ((module, target, in_string) for target in found[:1])


EDGES = set(edges())


def test_no_import_goes_up() -> None:
    def goes_up(module: str, target: str, in_string: bool) -> bool:
        here, there = part_of(module), part_of(target)
        return here != there and RANKS[there] >= RANKS[here] and not (in_string and module == BY_NAME)

    up = [edge for edge in EDGES if goes_up(*edge)]
    assert not up, "\n".join(f"{here} imports {there}: {part_of(here)} under {part_of(there)}" for here, there, _ in up)


def test_no_imports_in_a_circle() -> None:
    """Inside a part too, and those inside functions; modules that strings name do not count."""
    graph: TopologicalSorter[str] = TopologicalSorter()
    for module, target, in_string in EDGES:
        if not in_string and target != module:
            graph.add(module, target)
    # Raises CycleError, which names the circle.
    graph.prepare()


def test_every_module_and_part_has_its_place_in_the_page() -> None:
    assert {part_of(module) for module in MODULES} == set(PARTS.values()) == set(RANKS)
    for name in PARTS:
        assert {name, f"{name}.__init__"} & set(MODULES), f"docs/architecture.md: {name} is gone"


def test_every_module_has_a_user() -> None:
    """Another module that imports or names it, or an entry point, a build file, a chart or a page that runs it."""
    used = {target for module, target, _ in EDGES if target != module}
    callers = [ROOT / name for name in ("pyproject.toml", "Makefile", "Dockerfile", "README.md")]
    callers += [*ROOT.glob("docs/*.md"), *ROOT.glob("deploy/helm/ropeswitch/templates/**/*")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in callers if path.is_file())
    run = [name.replace(":", ".") + "." for name in re.findall(rf"\b{PACKAGE}\.([\w.:]+)", text)]
    for module, path in MODULES.items():
        is_run = any(name.startswith(f"{module.removesuffix('.__main__')}.") for name in run)
        assert path.name == "__init__.py" or module in used or is_run or f"files/{path.name}" in text, module


def test_each_part_needs_no_packages_but_those_of_its_row() -> None:
    """Factor tools and kernels run where vLLM is not installed, and the server reaches it through one adapter."""
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        packages = {name.split(".")[0] for node in ast.walk(tree) for name in imported(node, module)} - {PACKAGE}
        part = part_of(module)
        if part in ("ladder", "bundled model"):
            assert packages <= sys.stdlib_module_names, path
        if module.startswith("kernels."):
            assert packages <= {*sys.stdlib_module_names, "numpy", "torch", "triton"}, path
        if part in ("factor tools", "server") and module != "server.app.vllm_adapter":
            assert "vllm" not in packages, path
    tools = {part_of(target) for module, target, _ in EDGES if part_of(module) == "factor tools"}
    assert not tools & {"scheduling", "cpu", "triton", "guard", "server"}
