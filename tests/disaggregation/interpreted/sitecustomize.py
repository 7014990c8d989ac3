"""On ``PYTHONPATH``: does in a server's processes what the plugin ``tests/exactness/interpreted.py`` does in pytest's."""

import importlib
import sys

if any("spawn_main" in argument or argument == "serve" for argument in sys.orig_argv):
    importlib.import_module("tests.exactness.interpreted")
