"""Finds symbols in an unpacked vLLM's Python source by dotted path, without importing or running it."""

import ast
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Definition:
    """A function, class or assignment in some module.

    Attributes:
        node: Its syntax tree.
        owner: The names of the enclosing classes, outermost first; empty at module level.
        text: Its source, including decorators and comments.
    """

    node: ast.stmt
    owner: tuple[str, ...]
    text: str

    @property
    def code(self) -> str:
        """Its code without comments, docstrings and formatting."""
        tree = deepcopy(self.node)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
                node.body = node.body[1:] or [ast.Pass()]
        return ast.unparse(tree)


class SourceTree:
    """The Python source of one release.

    Args:
        folder: The folder that contains ``vllm``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, tuple[str, list[ast.stmt]] | None] = {}

    def find(self, path: str) -> list[Definition]:
        """Return every definition of a symbol (several if an ``if`` chooses), following imports and base classes.

        Args:
            path: Dotted path, as in the guard's records.

        Returns:
            The definitions; an empty list if the release has no such symbol.
        """
        return self._find(path, frozenset())

    def _find(self, path: str, seen: frozenset[str]) -> list[Definition]:
        if path in seen:
            return []
        parts = path.split(".")
        for split in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:split])
            if self._load(module) is not None:
                return self._in_module(module, parts[split:], seen | {path})
        return []

    def _in_module(self, module: str, names: Sequence[str], seen: frozenset[str]) -> list[Definition]:
        text, body = self._load(module) or ("", [])
        found: list[Definition] = []
        for node in _statements(body):
            if isinstance(node, ast.ImportFrom):
                origin = self._origin(module, node)
                for alias in node.names:
                    if alias.name == "*":
                        found += self._find(".".join([origin, *names]), seen)
                    elif (alias.asname or alias.name) == names[0]:
                        found += self._find(".".join([origin, alias.name, *names[1:]]), seen)
            elif names[0] in _names(node):
                found += self._in_definition(Definition(node, (), _source(text, node)), names[1:], module, seen)
        return found

    def _in_definition(
        self, outer: Definition, names: Sequence[str], module: str, seen: frozenset[str]
    ) -> list[Definition]:
        if not names:
            return [outer]
        if not isinstance(outer.node, ast.ClassDef):
            return []
        text, _ = self._load(module) or ("", [])
        owner = (*outer.owner, outer.node.name)
        # A property's accessors, and overloads, share one name; they are compared together.
        same = [node for node in _statements(outer.node.body) if names[0] in _names(node)]
        inner = [Definition(node, owner, _source(text, node)) for node in same]
        if inner:
            return [found for each in inner for found in self._in_definition(each, names[1:], module, seen)]
        for base in outer.node.bases:
            name = ast.unparse(base).partition("[")[0]
            if found := self._find(".".join([module, name, *names]), seen):
                return found
        return []

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        # A relative import starts at the package; for an __init__ that is the module itself.
        drop = node.level - (1 if self._file(module).name == "__init__.py" else 0)
        return ".".join([*parts[: len(parts) - drop], *([node.module] if node.module else [])])

    def _file(self, module: str) -> Path:
        path = self._folder.joinpath(*module.split("."))
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def _load(self, module: str) -> tuple[str, list[ast.stmt]] | None:
        if module not in self._modules:
            file = self._file(module)
            self._modules[module] = None
            if file.is_file():
                text = file.read_text(encoding="utf-8")
                try:
                    self._modules[module] = text, ast.parse(text, str(file)).body
                except SyntaxError as error:
                    # A release may need a newer Python than this one.
                    raise LookupError(f"{file}:{error.lineno}: this Python cannot parse it: {error.msg}") from error
        return self._modules[module]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module or class, including those inside ``if``, ``try`` and ``with``."""
    for node in body:
        yield node
        for field in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                for inner in getattr(node, field, []):
                    yield from _statements(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def _names(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _source(text: str, node: ast.stmt) -> str:
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
