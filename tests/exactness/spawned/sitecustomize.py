"""On ``PYTHONPATH``: does in an engine's own processes what the ``interpreted`` plugin does in their parent."""

import importlib
import sys

if any("spawn_main" in argument or "forkserver" in argument for argument in sys.orig_argv):
    importlib.import_module("tests.exactness.interpreted")
