"""vLLM's ``vllm.endpoint_plugins`` hook: our routes, middleware and checks in every API server process.

vLLM loads it only if ``VLLM_PLUGINS`` names it, and the ``ropeswitch`` command sets that variable. What it adds to plain
``vllm serve`` is in ``vllm_serve.py``.
"""

import asyncio
import logging
from argparse import Namespace
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State

from ropeswitch.factors.errors import UsageError
from ropeswitch.model_patches.guard.fingerprints import RegistryError
from ropeswitch.model_patches.guard.registry import require
from ropeswitch.model_patches.switch.config.key import NAME
from ropeswitch.model_patches.switch.config.settings import UnsupportedError, settings_of
from ropeswitch.model_patches.switch.placement import EngineLadder
from ropeswitch.server.app import engine_utilities, health, life_cycle, routes, vllm_adapter, vllm_serve
from ropeswitch.server.app.aliases import Aliases
from ropeswitch.server.app.engine_client import Prompts, RopeClient, prompt_length
from ropeswitch.server.app.parts import ServerParts
from ropeswitch.server.front.access_log import AccessLog
from ropeswitch.server.front.bodies.long_prompts import separate_long_prompts
from ropeswitch.server.front.bodies.request import read_long_bodies
from ropeswitch.server.front.limits.cost import GrammarTurns
from ropeswitch.server.front.limits.media import Connector
from ropeswitch.server.front.state import build
from ropeswitch.server.metrics.outputs import start as start_length_metrics
from ropeswitch.server.metrics.queue_metrics import queue_gauges
from ropeswitch.server.metrics.scheduling_metrics import SchedulingMetrics
from ropeswitch.server.patches import SERVER_PATCHES
from ropeswitch.server.start import refusals
from ropeswitch.server.start.log import ready
from ropeswitch.server.ui import page, status
from ropeswitch.server.ui.running import RunningSequences


class RopeSwitchEndpoints:
    """``vllm.plugins.endpoint_plugins.interface.EndpointPlugin``."""

    name = NAME
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        if not _by_ropeswitch(app.state.args):
            vllm_serve.attach(app)
            return
        for router in (routes.rope_router, routes.models_router, health.router, page.router, status.router):
            app.include_router(router)
        read_long_bodies(app)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Refuse an engine with another ladder; then add our parts to the app and the engine client.

        Raises:
            SystemExit: for a refused start, whose reason the command prints. For plain ``vllm serve`` see ``vllm_serve.py``.
        """
        if not _by_ropeswitch(args):
            vllm_serve.start(engine_client, state, args)
            return
        try:
            state.ropeswitch, coroutines = await _set_up(engine_client, state, args)
        except (UnsupportedError, RegistryError, UsageError) as error:
            refusals.report(str(error))
            raise SystemExit(refusals.EXIT_CODE) from error
        life_cycle.LIFE.start()
        coroutines.append(ready.announce(state, args, vllm_adapter.first_request(engine_client, state)))
        # A task lives only as long as something references it.
        state.ropeswitch_tasks = [asyncio.create_task(each) for each in coroutines]
        for task in state.ropeswitch_tasks:
            task.add_done_callback(_report)


async def _set_up(engine_client: Any, state: State, args: Namespace) -> tuple[ServerParts, list[Any]]:
    """Check the engine, make every part of the process, and change vLLM's own objects.

    Returns:
        The parts, and coroutines to run for the life of the server.

    Raises:
        UnsupportedError: when a worker has another ladder, or the engine was not started by us.
        RegistryError: when vLLM's server is not the one that we wrap.
        UsageError: when the API key file has become unreadable.
    """
    # A package that vLLM's SageMaker routes import sets the root logger to ERROR, which would hide our warnings.
    logging.getLogger("ropeswitch").setLevel(logging.WARNING)
    require(SERVER_PATCHES)
    settings = settings_of(engine_client.vllm_config) if engine_client is not None else None
    if settings is None or not isinstance(engine_client, RopeClient):
        raise UnsupportedError("VLLM_PLUGINS: ropeswitch needs an engine started by ropeswitch serve")
    engine_utilities.check_reports(await engine_utilities.worker_reports(engine_client), settings)
    sets, model = settings.ladder, engine_client.model_config
    name, ladder = model.served_model_name, EngineLadder.of(settings, model.max_model_len)
    make_error, vocabulary = vllm_adapter.AdmissionError, model.get_vocab_size()
    front = build(args, sets, model.max_model_len, engine_client.waits, make_error, vocabulary)
    connector = partial(Connector, args.allow_private_media, args.max_image_pixels)
    vllm_adapter.media.MEDIA_CONNECTOR_REGISTRY.register(NAME)(connector)
    processor = engine_client.output_processor
    watch = health.EngineWatch(
        engine_utilities.asking(engine_client, health.UTILITY),
        partial(len, processor.request_states),
        args.stall_timeout,
    )
    coroutines = [watch.watch(), front.queue.watch(queue_gauges(front.queue, name, args.ropeswitch_dropped_lines))]

    processor.client, processor.most = engine_client, front.cost_limits.logprobs
    metrics, registry = start_length_metrics(engine_client, ladder), vllm_adapter.get_prometheus_registry()
    computed = partial(engine_utilities.computed_tokens, engine_client)
    running = RunningSequences(processor.request_states, sets.names, computed)

    separate_long_prompts(engine_client.renderer, model.max_model_len, partial(vllm_adapter.text_too_long, model))
    engine_client.turns = GrammarTurns(vocabulary)
    engine_client.prompts = Prompts(
        ladder,
        front.queue,
        partial(prompt_length, model),
        limits_output=model.get_diff_sampling_param().get("max_tokens") is not None,
        by_key=args.prefix_cache_scope == "key",
        shows_cached=args.enable_prompt_tokens_details,
        bounds_whitespace=engine_client.vllm_config.structured_outputs_config.disable_any_whitespace,
        shared=front.keys.may_be_shared,
        cost_limits=front.cost_limits,
    )
    rope, log = routes.rope_info(settings, model), args.ropeswitch_access_log
    engines = engine_utilities.asking(engine_client, "scheduling_report") if settings.length_aware else None
    parts = ServerParts(
        front=front,
        engine_watch=watch,
        rope_info=rope,
        aliases=Aliases(state.openai_serving_models, sets.names, args.ladder_aliases),
        status=status.StatusSource(name, rope, registry, metrics, running),
        scheduling_metrics=None if engines is None else SchedulingMetrics(engines, name),
        length_metrics=metrics,
        access_log=None if log is None else AccessLog(log, sets, name, metrics is not None),
        prefill_progress=partial(engine_utilities.prefill_progress, engine_client),
        shows_cached=args.enable_prompt_tokens_details,
        request_ids=args.enable_request_id_headers,
    )
    return parts, coroutines


def _by_ropeswitch(args: Namespace) -> bool:
    """Whether ``ropeswitch serve`` started the server."""
    return hasattr(args, "ropeswitch_front")


def _report(task: asyncio.Task[None]) -> None:
    """Log the failure of a background task at once, not only when the task is garbage collected."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "a background task has failed", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
