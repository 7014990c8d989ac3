"""Plugins by a relative path, as vLLM imports them."""

import argparse
from pathlib import Path

import pytest
from vllm.utils.import_utils import import_plugin

from ropeswitch.server.start.serve import _find_plugins


def test_a_relative_file_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "relative_parser.py").write_text("NAME = 'mine'\n")
    monkeypatch.chdir(tmp_path)
    args = argparse.Namespace(tool_parser_plugin="./relative_parser.py", reasoning_parser_plugin="a.module")
    _find_plugins(args)
    module = import_plugin(args.tool_parser_plugin)
    assert module is not None and module.NAME == "mine"
    assert args.reasoning_parser_plugin == "a.module"


def test_flags_that_are_not_given_stay_so() -> None:
    args = argparse.Namespace(tool_parser_plugin="", reasoning_parser_plugin=None)
    _find_plugins(args)
    assert vars(args) == {"tool_parser_plugin": "", "reasoning_parser_plugin": None}
