"""Makes the paths of ``--tool-parser-plugin`` and ``--reasoning-parser-plugin`` absolute."""

import argparse
from pathlib import Path

FLAGS = ("tool_parser_plugin", "reasoning_parser_plugin")


def make_absolute(args: argparse.Namespace) -> None:
    """Make relative paths absolute: vLLM's ``import_plugin`` mistakes ``./file.py`` for a module's name and fails."""
    for name in FLAGS:
        if (path := getattr(args, name) or "").startswith("."):
            setattr(args, name, str(Path(path).resolve()))
