"""The engines of a comparison: each in a process of its own, which works only between a question and its answer."""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from ropeswitch.model_patches.switch.config.key import KEY, left_out
from ropeswitch.model_patches.switch.parts import PARTS

STOP_SECONDS = 30


class Side:
    """A process that holds one engine.

    It calls ``serve`` with a pipe and ``args``, which sends one message once its engine is ready, then an answer to each
    question, until the question is None.
    """

    def __init__(self, serve: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, *args), daemon=False)
        self._process.start()
        other.close()
        self._idle = False

    @cached_property
    def started(self) -> Any:
        """The first message, waited for."""
        return self._receive()

    def ask(self, question: Any) -> Any:
        """Return the answer to one question."""
        assert self.started
        self._idle = False
        self._pipe.send(question)
        return self._receive()

    def stop(self) -> None:
        """End the process, even if it is busy."""
        if self._idle:
            self._pipe.send(None)
            self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            raise SystemExit(f"bench: an engine has ended with exit code {code}; its error is above") from None
        self._idle = True
        return answer


def with_ladder(arguments: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Add the ladder of the model's own config to vLLM's engine arguments, as ``ropeswitch serve`` does."""
    if (reason := left_out(os.environ)) is not None:
        raise SystemExit(f"bench: {reason}")
    return {**arguments, "additional_config": {KEY: {"ladder": "auto", "parts": list(PARTS), **options}}}
