"""vLLM's ``vllm.endpoint_plugins`` hook: our route, middleware and checks in every API server process.

vLLM loads it only where ``VLLM_PLUGINS`` names it, which the ``ropeswitch`` command sees to.
"""

import asyncio
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.guard.fingerprints import Patch, RegistryError
from ropeswitch.model_patches.guard.registry import in_play, require
from ropeswitch.model_patches.switch.settings import UnsupportedError, settings_of
from ropeswitch.server import life_cycle, refusals, rope_route, starting, vllm_adapter
from ropeswitch.server.access_log.log import start as start_access_log
from ropeswitch.server.body_errors import name_wrong_fields
from ropeswitch.server.engine_prompts import watch
from ropeswitch.server.engine_watch import WATCH
from ropeswitch.server.errors import UsageError
from ropeswitch.server.factor_set_header import FactorSetHeader
from ropeswitch.server.fault_log import tell_faults
from ropeswitch.server.front import models_route, tls
from ropeswitch.server.front.build import build
from ropeswitch.server.front.queue_metrics import QueueMetrics
from ropeswitch.server.front.tasks import go_on
from ropeswitch.server.ingest.detokenizer import decode_prompt_ends
from ropeswitch.server.ingest.engine_messages import send_packed
from ropeswitch.server.ingest.progress import show_progress
from ropeswitch.server.ingest.renderer import take_long_prompts
from ropeswitch.server.ingest.routes import read_long_bodies
from ropeswitch.server.left_out_routes import leave_out
from ropeswitch.server.length_metrics.fates import CountFates
from ropeswitch.server.length_metrics.start import start as start_length_metrics
from ropeswitch.server.patches import SERVER_PATCHES
from ropeswitch.server.plugin_names import PLUGIN
from ropeswitch.server.scheduling_metrics import FreshMetrics, SchedulingMetrics
from ropeswitch.server.stream_errors import EndStreams
from ropeswitch.server.ui import page, status
from ropeswitch.server.upstream_texts import UPSTREAM_TEXTS


class RopeSwitchEndpoints:
    """``vllm.plugins.endpoint_plugins.interface.EndpointPlugin``."""

    name = PLUGIN
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        # For init_state, when vLLM has given the app its handlers of errors.
        app.state.app = app
        app.include_router(rope_route.router)
        app.include_router(models_route.router)
        app.include_router(life_cycle.router)
        app.include_router(page.router)
        app.include_router(status.router)
        read_long_bodies(app)
        app.add_middleware(EndStreams)
        app.add_middleware(FactorSetHeader)
        app.add_middleware(FreshMetrics)
        app.add_middleware(life_cycle.Gate)
        app.add_middleware(CountFates)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Refuse an engine that is not patched throughout; then watch its prompts and show how it schedules.

        Raises:
            SystemExit: when a worker lacks a patch or a factor set, or vLLM's server is not the one that we wrap; the
                command that started us prints the reason.
        """
        try:
            require(SERVER_PATCHES, UPSTREAM_TEXTS)
            settings = settings_of(engine_client.vllm_config) if engine_client is not None else None
            if settings is None:
                raise UnsupportedError("VLLM_PLUGINS: ropeswitch needs an engine started by ropeswitch serve")
            patches = in_play(engine_client.vllm_config)
            check_reports(await vllm_adapter.worker_reports(engine_client), settings.ladder, patches)
            waits, max_model_len = vllm_adapter.prompt_waits(engine_client), engine_client.model_config.max_model_len
            state.front, admission = build(
                args.ropeswitch_front, settings.ladder, max_model_len, waits, vllm_adapter.http_error
            )
        except (UnsupportedError, RegistryError, UsageError) as error:
            refusals.tell(str(error))
            raise SystemExit(refusals.EXIT_CODE) from error
        state.rope_info = rope_route.rope_info(settings, max_model_len, patches)
        if settings.length_aware:
            engines = vllm_adapter.scheduling_reports(engine_client)
            state.scheduling_metrics = SchedulingMetrics(engines, engine_client.model_config.served_model_name)
        state.queue_metrics = QueueMetrics(state.front.queue, engine_client.model_config.served_model_name)
        tell_faults(state.app)
        name_wrong_fields(state.app)
        leave_out(state.app, state)
        state.length_metrics = start_length_metrics(engine_client, settings.ladder)
        state.status_source = status.StatusSource(
            model=engine_client.model_config.served_model_name,
            rope=state.rope_info,
            bands=None if state.length_metrics is None else state.length_metrics.plan.bands,
            registry=vllm_adapter.metrics_registry(),
        )
        if engine_client.output_processor.tracing_enabled:
            # Its packages are looked for only where there are traces.
            from ropeswitch.server import traces

            traces.start(engine_client.output_processor, settings.ladder)
        if args.ropeswitch_access_log is not None:
            state.access_log = start_access_log(args.ropeswitch_access_log, settings.ladder, engine_client)
        take_long_prompts(engine_client.renderer, picklable=vllm_adapter.is_fast(engine_client.renderer.tokenizer))
        send_packed(engine_client.engine_core)
        decode_prompt_ends(vllm_adapter.FastIncrementalDetokenizer)
        watch(engine_client, state, settings.ladder, admission)
        show_progress(state, vllm_adapter.prefill_progress(engine_client))
        state.front_tasks = go_on(state.front.queue.watch())
        if args.ropeswitch_front.refresh_tls:
            state.front_tasks += go_on(tls.refresh(args, partial(vllm_adapter.tls_context, state)))
        engine_client.shutdown = life_cycle.draining(engine_client)
        WATCH.start(engine_client, state, keep_alive=vllm_adapter.keeps_alive_without_engine())
        await asyncio.to_thread(starting.stop)


def check_reports(reports: Sequence[dict[str, Any]], ladder: FactorLadder, patches: Sequence[Patch]) -> None:
    """Check that every worker runs every patch and the whole ladder.

    Args:
        reports: What ``patch_report`` answered on each worker.
        ladder: The ladder that the server was started with.
        patches: What its engine needs.

    Raises:
        UnsupportedError: naming the worker and what it lacks.
    """
    if not reports:
        raise UnsupportedError("patch_report: no worker answered, so nothing shows that the engine is patched")
    for report in reports:
        if missing := [patch.target for patch in patches if patch.target not in report["patches"]]:
            raise UnsupportedError(f"patch_report: worker {report['rank']} runs without the patch of {missing[0]}")
        if tuple(report["sets"]) != ladder.names:
            raise UnsupportedError(
                f"patch_report: worker {report['rank']} rotates with the sets {', '.join(report['sets'])}, "
                f"the server with {', '.join(ladder.names)}"
            )
