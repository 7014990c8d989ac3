"""On ``PYTHONPATH``: does in an engine's spawned processes what the ``interpreted`` plugin does in their parent."""

import importlib
import sys

if any("spawn_main" in argument for argument in sys.orig_argv):
    importlib.import_module("tests.exactness.interpreted")
