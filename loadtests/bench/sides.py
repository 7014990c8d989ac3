"""The engines of a comparison: each in a process of its own, which works only between a question and its answer."""

import multiprocessing
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

STOP_SECONDS = 30


class Side:
    """A process that holds one engine.

    Args:
        serve: Called in the new process with a pipe and ``args``. It sends one message once its engine is ready, then an
            answer to each question, until the question is None.
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
    """Add the ladder of the model's own config to vLLM's engine arguments, as ``ropeswitch serve`` does.

    Args:
        arguments: vLLM's engine arguments.
        options: Fields of ``RopeSettings`` that differ from their defaults.
    """
    from vllm import EngineArgs
    from vllm.platforms import current_platform
    from vllm.transformers_utils.config import get_config

    from ropeswitch.factors.hf_config import ladder_from_config
    from ropeswitch.model_patches.switch.engine_args import configure
    from ropeswitch.model_patches.switch.settings import RopeSettings
    from ropeswitch.model_patches.switch.unsupported import check_features, check_model

    args = EngineArgs(**arguments)
    config = get_config(arguments["model"], trust_remote_code=False).to_dict()
    ladder = ladder_from_config(config)
    assert ladder is not None
    check_features(args)
    settings = RopeSettings(ladder, check_model(config, ladder), **options)
    configure(args, settings, config, device_name=current_platform.device_name)
    fields = ("hf_overrides", "max_model_len", "scheduler_cls", "worker_cls", "additional_config")
    return {**arguments, **{field: getattr(args, field) for field in fields}}
