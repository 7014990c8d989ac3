"""No import goes up: the ladder and the kernels at the ground, the core on them, the tools on top."""

import re
import sys
from pathlib import Path

import pytest

from tests.layers import LAYERS, PARTS, ROOT, circles, imports, modules, outside, part_of, without_user


def test_no_import_goes_up() -> None:
    up = [each for each in imports() if each.goes_up]
    assert not up, "\n" + "\n".join(map(str, up))


def test_no_imports_in_a_circle(tmp_path: Path) -> None:
    """Inside a part too, and those inside functions."""
    assert not circles()
    (tmp_path / "server").mkdir()
    (tmp_path / "server/a.py").write_text("from ropeswitch.server import b\n")
    (tmp_path / "server/b.py").write_text("def f():\n    from ropeswitch.server import c\n")
    (tmp_path / "server/c.py").write_text("import ropeswitch.server.a\n")
    (tmp_path / "server/d.py").write_text("import ropeswitch.server.a\n")
    assert circles(tmp_path) == ["server.a", "server.b", "server.c"]


def test_every_module_and_part_has_its_place() -> None:
    parts = [part for layer in LAYERS for part in layer]
    assert len(set(parts)) == len(parts)
    assert {part_of(module) for module in modules(ROOT)} == set(PARTS.values()) == set(parts)
    for name in PARTS:
        assert {name, f"{name}.__init__"} & set(modules(ROOT)), f"PARTS: {name} is gone"


def test_every_module_has_a_user(tmp_path: Path) -> None:
    assert not without_user()
    for name in ("server/used.py", "server/run.py", "server/nobody.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("from ropeswitch.server import used\n" if name == "server/run.py" else "")
    (tmp_path / "Makefile").write_text("run:\n\tpython -m ropeswitch.server.run\n")
    assert without_user(tmp_path) == ["server.nobody"]


def test_the_ladder_imports_the_standard_library_only() -> None:
    for module, path in modules(ROOT).items():
        if part_of(module) in ("ladder", "bundled model"):
            assert outside(path) <= sys.stdlib_module_names, path


def test_kernels_do_not_import_vllm() -> None:
    for module, path in modules(ROOT).items():
        if module.startswith("kernels."):
            assert outside(path) <= {*sys.stdlib_module_names, "numpy", "torch", "triton"}, path


def test_factor_tools_need_no_engine() -> None:
    """They run where vLLM is not installed; nothing in them knows the server."""
    tools = {module: path for module, path in modules(ROOT).items() if part_of(module) == "factor tools"}
    assert not [module for module, path in tools.items() if "vllm" in outside(path)]
    graph = [each for each in imports() if each.module in tools]
    assert not [
        str(each)
        for each in graph
        if part_of(each.target) in ("scheduling", "cpu", "triton", "serving", "guard", "server")
    ]


def test_the_server_reaches_vllm_through_one_adapter() -> None:
    server = {module: path for module, path in modules(ROOT).items() if part_of(module) == "server"}
    assert [module for module, path in server.items() if "vllm" in outside(path)] == ["server.app.vllm_adapter"]


def test_the_page_shows_this_house() -> None:
    """docs/architecture.md: the picture has these layers, and the table every part with every place listed for it."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.split("## Where things are\n")[1].split("\n## ")[0]
    drawn = re.findall(r"^ +(\d+) +\|(.*)\|", section, re.MULTILINE)
    layers = {int(number): tuple(part.strip() for part in row.split("|")) for number, row in drawn}
    assert layers == dict(enumerate(LAYERS)) and list(layers) == sorted(layers, reverse=True)
    rows = re.findall(r"^\| ([a-z ]+) \| (`.*?) \|", section, re.MULTILINE)
    places = {part: re.findall(r"`([^`]+)`", where) for part, where in rows}
    listed = {
        path.removesuffix("/").removesuffix(".py").replace("/", "."): part for part in places for path in places[part]
    }
    assert listed == {name: part for name, part in PARTS.items() if name != "factors.__init__"}
    assert list(places) == [part for layer in LAYERS for part in layer]


@pytest.mark.parametrize(
    ("file", "line", "there"),
    [
        ("kernels/angles.py", "import ropeswitch.server.start.serve", "server"),
        ("factors/file.py", "from ropeswitch.factors import cli", "factor tools"),
        ("factors/file.py", "from . import cli", "factor tools"),
        ("model_patches/switch/rows/rotary.py", "from ropeswitch.model_patches.guard.registry import require", "guard"),
        ("model_patches/switch/rows/rotary.py", "from ropeswitch.kernels import fill_rows_triton", "triton"),
        ("model_patches/switch/rows/rotary.py", "def f():\n    from ropeswitch.server.start import serve", "server"),
        (
            "model_patches/switch/rows/rotary.py",
            "if TYPE_CHECKING:\n    from ropeswitch.server.start import serve",
            "server",
        ),
        ("model_patches/switch/rows/rotary.py", "W = 'ropeswitch.model_patches.cpu.cpu_worker.Worker'", "cpu"),
        ("model_patches/switch/parts.py", "from ropeswitch.model_patches.cpu import cpu_worker", "cpu"),
        ("model_patches/scheduling/plan.py", "from ropeswitch.model_patches.cpu import cpu_worker", "cpu"),
        ("factors/evaluate/run.py", "from ropeswitch.loadtests.client import plan", "load tests"),
        ("server/start/serve.py", "from ropeswitch.server.cli import main", "command line"),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, file: str, line: str, there: str) -> None:
    """Each way to import, in a made-up tree that holds this one line and the modules to be imported."""
    for name in (file, "factors/cli.py", "kernels/__init__.py", "kernels/fill_rows_triton.py", "server/start/serve.py",
                 "model_patches/guard/registry.py", "model_patches/cpu/cpu_worker.py", "loadtests/client/plan.py",
                 "server/cli.py"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / file).write_text(f"'''A module.'''\n{line}\n", encoding="utf-8")
    [found] = imports(tmp_path)
    assert found.goes_up and f"of {there} (layer" in str(found)
    assert str(found).startswith(f"{file}:{2 + line.count(chr(10))}: ")
