"""Run by every Python process of a traced server at its start: after SIGUSR2 it notes which of our files run.

A line ``seconds file`` goes to ``FOLDER/PID`` when a function of a file is called, at most once in :data:`SECONDS`.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

FOLDER, ROOT = os.environ["TRACE_FOLDER"], os.environ["TRACE_ROOT"]
SECONDS = 0.05
last: dict[str, float] = {}
armed = False


def note(frame: FrameType, event: str, _: Any) -> None:
    if not armed or event != "call":
        return
    name = frame.f_code.co_filename
    # A checkout may hold its own environment.
    ours = name.startswith(ROOT) and "/site-packages/" not in name
    if ours and (now := time.time()) - last.get(name, 0.0) > SECONDS:
        last[name] = now
        with open(f"{FOLDER}/{os.getpid()}", "a", encoding="utf-8") as file:
            file.write(f"{now} {name}\n")


def arm(*_: Any) -> None:
    global armed
    armed = True
    sys.setprofile(note)


# Threads that start before the signal are traced from it on.
threading.setprofile(note)
signal.signal(signal.SIGUSR2, arm)
with open(f"{FOLDER}/{os.getpid()}", "a", encoding="utf-8"):
    pass
