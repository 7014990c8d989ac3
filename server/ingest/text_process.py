"""Tokenizes very long texts in a separate process.

A tokenizer releases the GIL while it works, but not while it frees its memory. For 16 MB of text, that would block an event
loop in the same process for 0.6 s.
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

# IDs converted to Python integers in one call, which takes about 2 ms.
PIECE = 1 << 16


# Title of the process, in the form of vLLM's own titles.
TITLE = "ropeswitch::Tokenizer"


class TextProcess:
    """One process, started by the first text; it tokenizes texts in order of arrival.

    Args:
        tokenizer: Called with a text and keyword arguments, returns ``input_ids``, as Hugging Face's do. It is pickled.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self.thread = ThreadPoolExecutor(1, "text-process")

    def token_ids(self, text: str, options: Mapping[str, Any]) -> TokenIds:
        """Return the token IDs of a text; call it on :attr:`thread` only.

        Args:
            text: The text to tokenize.
            options: The tokenizer's keyword arguments.

        Raises:
            RuntimeError: when the process ended before it answered; the next text starts a new one.
            Exception: the tokenizer's own error.
        """
        pipe = self._connected()
        try:
            pipe.send((text, options))
            answer = pipe.recv()
        except (EOFError, OSError) as error:
            self.stop()
            raise RuntimeError(
                "the process that tokenizes long texts ended, possibly because it ran out of memory"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        ids = np.frombuffer(answer, np.uint32)
        return TokenIds(ids[start : start + PIECE].tolist() for start in range(0, len(ids), PIECE))

    def stop(self) -> None:
        """End the process, if it is running."""
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
    """Tokenize the texts from ``pipe`` until its other end is closed; the process runs this."""
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
