"""Environment variables of vLLM's that are wrong."""

import subprocess
import sys

import pytest

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.flags import environment
from tests.server.running import PROGRAM
from tests.server.running import environment as variables


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("VLLM_PORT", "tcp://10.0.0.1:80", "appears to be a URI"),
        ("VLLM_CPU_KVCACHE_SPACE", "4GB", "'4GB' is not valid: invalid literal for int()"),
        ("VLLM_CONFIGURE_LOGGING", "yes", "'yes' is not valid"),
        ("VLLM_WORKER_MULTIPROC_METHOD", "swapn", "'swapn' is not valid"),
        ("VLLM_LOGGING_LEVEL", "LOUD", "'LOUD' must be CRITICAL, FATAL, ERROR, WARN"),
        ("VLLM_LOGGING_CONFIG_PATH", "/none.json", "there is no file '/none.json'"),
    ],
)
def test_a_wrong_value_names_its_variable(
    name: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        environment.check({name: value})
    assert str(caught.value).startswith(f"{name}: ") and expected in str(caught.value)


def test_right_and_unknown_ones_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "VLLM_LOGGING_LEVEL": "debug",
        "VLLM_PORT": "7000",
        "VLLM_NO_SUCH": "?",
        "PATH": "?",
        "VLLM_CPU_KVCACHE_SPACE": "4",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment.check(given)


def test_vllm_is_not_imported_for_any_of_them() -> None:
    code = """
import os, sys
from contextlib import suppress
from ropeswitch.factors.errors import UsageError
from ropeswitch.server.flags import environment
names = list(environment._readers())
assert len(names) > 100
for name in names:
    os.environ[name] = "1"
    with suppress(UsageError):
        environment.check({name: "1"})
    assert not {"vllm", "torch"} & set(sys.modules), name
    del os.environ[name]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_checks_it() -> None:
    wrong = variables() | {"VLLM_PORT": "tcp://10.0.0.1:80"}
    done = subprocess.run([*PROGRAM, "serve"], env=wrong, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 2
        and done.stderr.startswith("ropeswitch: error: VLLM_PORT: ")
        and done.stderr.count("\n") == 1
    )
