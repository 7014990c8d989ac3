"""A process that tokenizes very long texts.

A tokenizer lets go of the interpreter's lock while it works, but not while it frees what it worked with: 0.6 s for 16 MB of
text, in which an event loop of the same process stands still.
"""

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import numpy as np
from setproctitle import setproctitle

from ropeswitch.server.ingest.token_ids import TokenIds

# IDs that are made into Python's integers in one go, in about 2 ms.
PIECE = 1 << 16


# As vLLM names its own.
TITLE = "ropeswitch::Tokenizer"


class TextProcess:
    """One process, started by the first text; texts have their turn in the order in which they come.

    Args:
        tokenizer: Called with a text and keyword arguments, it gives ``input_ids``, as Hugging Face's do. It is pickled.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self.thread = ThreadPoolExecutor(1, "text-process")

    def token_ids(self, text: str, options: Mapping[str, Any]) -> TokenIds:
        """The token IDs of a text; on :attr:`thread` alone.

        Args:
            text: What to tokenize.
            options: The tokenizer's keyword arguments.

        Raises:
            RuntimeError: when the process ended meanwhile; the next text gets a new one.
            Exception: what the tokenizer raised.
        """
        pipe = self._connected()
        try:
            pipe.send((text, options))
            answer = pipe.recv()
        except (EOFError, OSError) as error:
            self.stop()
            raise RuntimeError("the process that tokenizes long texts ended, possibly for lack of memory") from error
        if isinstance(answer, Exception):
            raise answer
        ids = np.frombuffer(answer, np.uint32)
        return TokenIds(ids[start : start + PIECE].tolist() for start in range(0, len(ids), PIECE))

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._pipe = self._process = None

    def _connected(self) -> Connection:
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            # A daemon ends with this process; if this process is killed, the daemon reads the end of the pipe and ends.
            self._process = context.Process(target=tokenize_texts, args=(theirs, self._tokenizer), daemon=True)
            self._process.start()
            theirs.close()
        return self._pipe


def tokenize_texts(pipe: Connection, tokenizer: Any) -> None:
    """What the process does: tokenize what comes until nothing more can come."""
    setproctitle(TITLE)
    # Ctrl-C reaches every process of the terminal; the parent ends this one.
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            text, options = pipe.recv()
            try:
                answer: Any = np.asarray(tokenizer(text, **options)["input_ids"], np.uint32).tobytes()
            except Exception as error:
                answer = error
            pipe.send(answer)
