"""Three people can hold the house: no import goes up, none goes in a circle, and every module is used."""

import sys
from pathlib import Path

import pytest

from tests.layers import PARTS, RANKS, ROOT, circles, imports, modules, outside, part_of, without_user


def made(root: Path, **files: str) -> Path:
    """Write a made-up tree of modules below ``server``."""
    (root / "server").mkdir()
    for name, text in files.items():
        (root / f"server/{name}.py").write_text(text)
    return root


def test_no_import_goes_up() -> None:
    up = [each for each in imports() if each.goes_up]
    assert not up, "\n" + "\n".join(map(str, up))


def test_no_imports_in_a_circle(tmp_path: Path) -> None:
    """Inside a part too, and those inside functions."""
    assert not circles()
    b = "def f():\n    from ropeswitch.server import c\n"
    c = d = "import ropeswitch.server.a\n"
    assert circles(made(tmp_path, a="from ropeswitch.server import b\n", b=b, c=c, d=d)) == [
        "server.a",
        "server.b",
        "server.c",
    ]


def test_every_module_and_part_has_its_place_in_the_page() -> None:
    assert {part_of(module) for module in modules(ROOT)} == set(PARTS.values()) == set(RANKS)
    for name in PARTS:
        assert {name, f"{name}.__init__"} & set(modules(ROOT)), f"docs/architecture.md: {name} is gone"


def test_every_module_has_a_user(tmp_path: Path) -> None:
    assert not without_user()
    made(tmp_path, used="", nobody="", run="from ropeswitch.server import used\n")
    (tmp_path / "Makefile").write_text("run:\n\tpython -m ropeswitch.server.run\n")
    assert without_user(tmp_path) == ["server.nobody"]


def test_each_part_needs_no_packages_but_those_of_its_row() -> None:
    """Factor tools and kernels run where vLLM is not installed, and the server reaches it through one adapter."""
    for module, path in modules(ROOT).items():
        part, packages = part_of(module), outside(path)
        if part in ("ladder", "bundled model"):
            assert packages <= sys.stdlib_module_names, path
        if module.startswith("kernels."):
            assert packages <= {*sys.stdlib_module_names, "numpy", "torch", "triton"}, path
        if part in ("factor tools", "server") and module != "server.app.vllm_adapter":
            assert "vllm" not in packages, path
    up = {"scheduling", "cpu", "triton", "serving", "guard", "server"}
    tools = [each for each in imports() if part_of(each.module) == "factor tools"]
    assert not [str(each) for each in tools if part_of(each.target) in up]


@pytest.mark.parametrize(
    ("file", "line", "there"),
    [
        ("kernels/angles.py", "import ropeswitch.server.start.serve", "server"),
        ("factors/file.py", "from . import cli", "factor tools"),
        ("model_patches/switch/rotary.py", "def f():\n    from ropeswitch.server.start import serve", "server"),
        ("model_patches/switch/rotary.py", "if TYPE_CHECKING:\n    import ropeswitch.server.start.serve", "server"),
        ("model_patches/switch/rotary.py", "W = 'ropeswitch.model_patches.cpu.worker.Worker'", "cpu"),
        ("model_patches/switch/parts.py", "from ropeswitch.model_patches.cpu import worker", "cpu"),
        ("model_patches/scheduling/plan.py", "from ropeswitch.model_patches.cpu import worker", "cpu"),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, file: str, line: str, there: str) -> None:
    """Each way to import, in a made-up tree that holds this one line and the modules to be imported."""
    for name in (file, "factors/cli.py", "server/start/serve.py", "model_patches/cpu/worker.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / file).write_text(f"'''A module.'''\n{line}\n", encoding="utf-8")
    [found] = imports(tmp_path)
    assert found.goes_up and f"of {there} (layer" in str(found)
    assert str(found).startswith(f"{file}:{2 + line.count(chr(10))}: ")
