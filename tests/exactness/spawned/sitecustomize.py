"""On ``PYTHONPATH``: does in a server's and an engine's processes what the ``interpreted`` plugin does in pytest's.

And what ``tests/server/patient`` does, whose module Python then does not import.
"""

import importlib
import sys

importlib.import_module("tests.server.patient.sitecustomize")
if any("spawn_main" in argument or "forkserver" in argument or argument == "serve" for argument in sys.orig_argv):
    importlib.import_module("tests.exactness.interpreted")
