"""The registry, the files and the documentation agree; a changed upstream stops the start."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ropeswitch.model_patches.guard import registry
from ropeswitch.model_patches.guard.cli import table
from ropeswitch.model_patches.guard.fingerprints import recorded, symbols
from ropeswitch.server.patches import SERVER_PATCHES

ROOT = Path(registry.__file__).resolve().parent.parent
# Upstream symbols that the API server replaces: the number only shrinks.
REPLACED = 3


def test_the_installed_vllm_fits() -> None:
    assert registry.mismatches(registry.for_this_device()) == {}


def test_files_and_registry_match() -> None:
    files = {record.file.removeprefix("model_patches/") for record in registry.PATCHES}
    # Such a file begins with the name of what it patches; several may add to one patch.
    starts = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in ROOT.rglob("*.py")}
    named = {path: text.split("``")[1] for path, text in starts.items() if re.match(r"``vllm\.\w+\.", text)}
    assert files <= {str(path.relative_to(ROOT)) for path in named}
    assert set(named.values()) <= {record.target for record in registry.PATCHES}
    assert len({record.target for record in registry.PATCHES}) == len(registry.PATCHES)


def test_the_file_holds_what_is_relied_on_and_nothing_else() -> None:
    assert set(recorded()) == set(symbols((*registry.PATCHES, *SERVER_PATCHES)))


def test_no_more_is_relied_on_than_is_read_at_an_upgrade() -> None:
    """A new symbol or wrap takes the place of one that goes; each says what would go wrong."""
    assert len(symbols(registry.PATCHES)) <= 44 and len(recorded()) <= 67
    assert all(reason for record in (*registry.PATCHES, *SERVER_PATCHES) for reason in record.relies_on.values())
    assert len([record for record in SERVER_PATCHES if record.kind != "unchanged"]) <= REPLACED
    assert {record.kind for record in SERVER_PATCHES} == {"wrapped", "subclassed", "unchanged"}


def test_the_documented_table_is_the_registry() -> None:
    assert table(SERVER_PATCHES) in (ROOT.parent / "docs" / "patches.md").read_text()


_PATCHING = """
from types import SimpleNamespace
from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.model_patches.guard import registry
from ropeswitch.model_patches.switch.engine import patching
from ropeswitch.model_patches.switch.config import settings
ladder = FactorLadder((FactorSet("short", 10, (1.0,)),))
patching.check_engine = lambda vllm_config: settings.RopeSettings(ladder, 1e4)
device, parallel = SimpleNamespace(device_type="cpu"), SimpleNamespace(decode_context_parallel_size=1)
model, cache = SimpleNamespace(hf_text_config=None, architectures=[]), SimpleNamespace(enable_prefix_caching=True)
load = SimpleNamespace(load_format="auto")
config = SimpleNamespace(
    device_config=device, parallel_config=parallel, model_config=model, cache_config=cache, load_config=load,
    kv_transfer_config=None, speculative_config=None,
)
"""


def run_with(change: str, then: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process where upstream's source was changed before anything was applied."""
    code = "\n".join(("import vllm.v1.core.kv_cache_utils as changed", change, _PATCHING, then))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.full
def test_a_changed_symbol_stops_the_start_and_nothing_is_applied() -> None:
    """A copy of an upstream function with one line changed takes its place; every patch is then refused."""
    change = (
        "import inspect, linecache\n"
        "source = inspect.getsource(changed.generate_block_hash_extra_keys)\n"
        "source = source.replace('if not extra_keys:', 'if len(extra_keys) == 0:')\n"
        "linecache.cache['copy.py'] = (len(source), None, source.splitlines(True), 'copy.py')\n"
        "exec(compile(source, 'copy.py', 'exec'), changed.__dict__)\n"
    )
    then = (
        "from vllm.model_executor.layers import rotary_embedding\n"
        "before = rotary_embedding._ROPE_DICT\n"
        "try:\n    patching.patch_process(config)\n"
        "except registry.RegistryError as error:\n    print(error)\n"
        "print('untouched', rotary_embedding._ROPE_DICT is before)"
    )
    done = run_with(change, then)
    assert "vllm.v1.core.kv_cache_utils.generate_block_hash_extra_keys: fingerprint" in done.stdout, done.stderr
    assert "untouched True" in done.stdout


def test_a_missing_symbol_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("vllm.v1.core.sched.scheduler.Scheduler._free_request")
    with pytest.raises(registry.RegistryError, match="_free_request: not found in the installed vLLM"):
        registry.require(registry.PATCHES)


@pytest.mark.full
def test_applying_twice_wraps_once() -> None:
    then = (
        "from vllm.model_executor.model_loader import base_loader\n"
        "patching.patch_process(config)\n"
        "once = base_loader.initialize_model\n"
        "patching.patch_process(config)\n"
        "print('once', base_loader.initialize_model is once)\n"
        "print('wraps', once.__wrapped__.__module__.startswith('vllm.'))\n"
    )
    done = run_with("", then)
    held = [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" True")]
    assert held == ["once", "wraps"], done.stderr
