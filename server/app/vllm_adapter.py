"""Everything that the server imports from vLLM: its parser, configs, launcher and a few types.

No other module of ``server/`` imports vLLM.
"""

import socket
from argparse import Namespace
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Literal, NoReturn

import uvloop
from vllm import envs as envs
from vllm.config.structured_outputs import StructuredOutputsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli import serve as cli_serve
from vllm.entrypoints.launchers.api_server.entry import run_server_worker, setup_server
from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMValidationError
from vllm.logger import configure_logging_from_args
from vllm.multimodal import media as media
from vllm.multimodal.image import open_image as open_image
from vllm.platforms import current_platform
from vllm.renderers.hf import HfRenderer, resolve_chat_template
from vllm.renderers.inputs.preprocess import extract_prompt_len as extract_prompt_len
from vllm.triton_utils import HAS_TRITON
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.system_utils import decorate_logs
from vllm.v1.engine.async_llm import AsyncLLM as AsyncLLM
from vllm.v1.engine.async_llm import InputStreamError as InputStreamError
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor as OutputProcessor
from vllm.v1.metrics.prometheus import get_prometheus_registry as get_prometheus_registry
from vllm.v1.metrics.stats import IterationStats as IterationStats

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.quoted import quoted
from ropeswitch.model_patches.guard.fingerprints import resolve
from ropeswitch.server.front.refusal import Refusal, RefusedError
from ropeswitch.server.start.fit.sequences import Machine

make_arg_parser = resolve("vllm.entrypoints.common.cli_args.make_arg_parser")[2]
validate_parsed_serve_args = resolve("vllm.entrypoints.common.cli_args.validate_parsed_serve_args")[2]
cli_env_setup = resolve("vllm.entrypoints.common.startup.cli_env_setup")[2]
# Proxies close a streamed response that is silent for a minute, as during a long prompt's prefill.
KEEP_ALIVE_SECONDS = 15
# vLLM's default ends running requests at once.
SHUTDOWN_SECONDS = 25
HEAD_BYTES = 64 << 10  # of a request; vLLM's default is 4 MiB, and a client need not finish one
# Draft methods that only the V1 model runner supports (`VllmConfig._get_v2_model_runner_unsupported_features`).
_V1_DRAFTS = ("suffix", "medusa", "mlp_speculator", "custom_class")
# Flags whose values we read as JSON objects; vLLM's parser lets other values through.
_OBJECTS = ("hf_overrides", "speculative_config", "additional_config")
# A small model may emit whitespace, which JSON allows, up to its output limit. Only a named backend can forbid that.
STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}


class _Parser(FlexibleArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))

    def load_config_file(self, file_path: str) -> list[str]:
        try:
            return list(super().load_config_file(file_path))
        except Exception as error:
            # Only the user's file is read above.
            raise UsageError(f"--config: {file_path!r} cannot be read: {error}") from error


def stock_parser() -> Any:
    """Return the parser of ``vllm serve``."""
    return make_arg_parser(_Parser(prog="ropeswitch serve", usage="ropeswitch serve [MODEL] [options]"))


def parse(argv: Sequence[str], add_flags: Callable[[Any], None]) -> Namespace:
    """Parse the arguments of ``vllm serve`` and those that ``add_flags`` adds; ``model`` is None if none was named.

    Raises:
        UsageError: with the flag and its value.
        SystemExit: after printing help.
    """
    try:
        cli_env_setup()
        parser = stock_parser()
        add_flags(parser)
        parser.set_defaults(
            model=None,
            subparser="serve",
            sse_keep_alive_interval=KEEP_ALIVE_SECONDS,
            shutdown_timeout=SHUTDOWN_SECONDS,
            enable_request_id_headers=True,
            enable_prompt_tokens_details=None,  # --prefix-cache-scope decides
            h11_max_incomplete_event_size=HEAD_BYTES,
            structured_outputs_config=StructuredOutputsConfig(**STRUCTURED_OUTPUTS),
        )
        args = parser.parse_args(list(argv))
        configure_logging_from_args(args)
        validate_parsed_serve_args(args)
    except UsageError:
        raise
    except Exception as error:
        # Only the user's flags, files and environment variables are read above.
        raise UsageError(str(error)) from error
    for name in _OBJECTS:
        if (value := getattr(args, name)) is not None and not isinstance(value, dict):
            raise UsageError(f"--{name.replace('_', '-')}: {quoted(value)} must be a JSON object")
    if args.grpc or envs.VLLM_USE_RUST_FRONTEND:
        name = "--grpc" if args.grpc else "VLLM_USE_RUST_FRONTEND"
        raise UsageError(f"{name}: this front end cannot run the factor-set header and checks; leave it out")
    args.model = args.model_tag or args.model
    args.model_tag = None
    return args


def device_name() -> str:
    """Return the device kind of this vLLM build: ``cpu``, ``cuda``, ``rocm`` (cuda to torch), ``xpu`` and so on."""
    return str(current_platform.device_name)


def machine(args: Namespace) -> Machine:
    """Return this machine as vLLM sees it, with vLLM's choices on it for flags that are not set."""
    v2 = envs.VLLM_USE_V2_MODEL_RUNNER
    if v2 is None:
        v2 = HAS_TRITON and (args.speculative_config or {}).get("method") not in _V1_DRAFTS
    world = args.tensor_parallel_size * args.pipeline_parallel_size
    sequences = AsyncEngineArgs.get_batch_defaults(world)[1][UsageContext.OPENAI_API_SERVER]
    if args.performance_mode == "throughput":
        sequences *= 2
    return Machine(
        device=device_name(),
        devices=current_platform.device_count(),
        device_bytes=current_platform.get_device_total_memory(),
        v2=bool(v2),
        sequences=min(sequences, args.max_num_batched_tokens or sequences),
    )


def serve(args: Namespace) -> None:
    """Serve until stopped: with one API server or several, data-parallel, or headless, depending on the flags."""
    if args.port == 0:  # chosen here, so that the ready line can name it
        with socket.create_server(("", 0)) as free:
            args.port = free.getsockname()[1]
    servers = args.data_parallel_size if args.api_server_count is None else args.api_server_count
    if servers == 1 and not args.headless and not args.data_parallel_multi_port_external_lb:
        args.api_server_count = None
        uvloop.run(_run_server(args))
    else:
        cli_serve.ServeSubcommand.cmd(args)


async def _run_server(args: Namespace) -> None:
    # vLLM's function of that name also sets a handler of SIGTERM, whose KeyboardInterrupt its wait for the engine swallows.
    decorate_logs("APIServer", skip_if_decorated=True)
    address, listener = setup_server(args, reuse_port=False)
    await run_server_worker(address, listener, args)


def first_request(engine_client: Any, state: Any) -> Literal["chat", "completion", "tokens", "none"]:
    """Return the kind of request that a model can answer, by the handlers in the app's state."""
    if getattr(state, "openai_serving_chat", None) is None:
        return "none"
    renderer = engine_client.renderer
    if renderer.tokenizer is None:
        return "tokens"
    if not isinstance(renderer, HfRenderer):
        return "chat"
    given = state.openai_serving_chat.chat_template
    template = resolve_chat_template(renderer.tokenizer, given, None, model_config=engine_client.model_config)
    return "completion" if template is None else "chat"


def blames_client(error: BaseException) -> str | None:
    """Return the message of an error that the request caused, which starlette may have wrapped; None for other errors."""
    return next((str(each) for each in (error, error.__cause__) if isinstance(each, VLLMClientError)), None)


def is_dead_engine(error: BaseException) -> bool:
    """Whether an error only reports that the engine is dead."""
    return isinstance(error, EngineDeadError)


def validation_error(message: str, field: str) -> Exception:
    """Make an error that vLLM's app answers with a 400 in OpenAI's format, naming the field."""
    return VLLMValidationError(message, parameter=field)


def text_too_long(model_config: Any, characters: int) -> Exception:
    """Make the error for a text that is longer than any prompt; it begins like vLLM's own (``_TOO_LONG`` of refusal.py)."""
    return validation_error(
        f"This model's maximum context length is {model_config.max_model_len} tokens, and no text of more than {characters} "
        "characters has so few. Send a shorter text.",
        "prompt",
    )


class AdmissionError(RefusedError, GracefulHTTPError):
    """A refusal that vLLM's own error handling answers with its status and does not log as a fault."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.message, self.http_status = refusal.message, HTTPStatus(refusal.status)
