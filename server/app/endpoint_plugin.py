"""vLLM's ``vllm.endpoint_plugins`` hook: our routes, middleware and checks in every API server process.

vLLM loads it only if ``VLLM_PLUGINS`` names it, and the ``ropeswitch`` command sets that variable. What it adds to plain
``vllm serve`` is in ``vllm_serve.py``.

A process is set up in three steps, each of which needs the previous one: :func:`_checked` refuses an engine that is not
fully patched; :func:`_parts` makes every part, and all of them go into the app's state at once; :func:`_wrap` changes vLLM's
own objects. The order within the last two steps does not matter.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import State

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.guard.fingerprints import Patch, RegistryError
from ropeswitch.model_patches.guard.records import CLIENTS
from ropeswitch.model_patches.guard.registry import applied, in_play, require
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError, settings_of
from ropeswitch.model_patches.switch.placement import EngineLadder
from ropeswitch.server.app import engine_utilities, life_cycle, models_route, rope_route, vllm_adapter, vllm_serve
from ropeswitch.server.app.aliases import Aliases
from ropeswitch.server.app.engine_client import Prompts, RopeClient
from ropeswitch.server.app.engine_watch import WATCH
from ropeswitch.server.app.parts import ServerParts
from ropeswitch.server.app.tasks import start_tasks
from ropeswitch.server.front.access_log.log import start as start_access_log
from ropeswitch.server.front.bodies.renderer import separate_long_prompts
from ropeswitch.server.front.bodies.routes import read_long_bodies
from ropeswitch.server.front.inner import Inner
from ropeswitch.server.front.limits.queue_limits import Admission
from ropeswitch.server.front.state import FrontState, build
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.outputs import start as start_length_metrics
from ropeswitch.server.metrics.queue_metrics import QueueMetrics
from ropeswitch.server.metrics.scheduling_metrics import SchedulingMetrics
from ropeswitch.server.patches import SERVER_PATCHES
from ropeswitch.server.start import refusals
from ropeswitch.server.start.log import ready
from ropeswitch.server.start.plugin_names import PLUGIN
from ropeswitch.server.ui import page, status
from ropeswitch.server.ui.history import History
from ropeswitch.server.ui.running import RunningSequences
from ropeswitch.server.upstream_texts import UPSTREAM_TEXTS


class RopeSwitchEndpoints:
    """``vllm.plugins.endpoint_plugins.interface.EndpointPlugin``."""

    name = PLUGIN
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        if not _by_ropeswitch(app.state.args):
            vllm_serve.attach(app)
            return
        app.include_router(rope_route.router)
        app.include_router(models_route.router)
        app.include_router(life_cycle.router)
        app.include_router(page.router)
        app.include_router(status.router)
        read_long_bodies(app)
        app.add_middleware(Inner)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Refuse an engine that is not fully patched; then add our parts to the app and the engine client.

        Raises:
            SystemExit: when a worker lacks a patch or a factor set, or vLLM's server is not the one that we wrap; the
                command that started us prints the reason. For plain ``vllm serve`` see :func:`vllm_serve.start`.
        """
        if not _by_ropeswitch(args):
            vllm_serve.start(engine_client, state, args)
            return
        try:
            checked = await _checked(engine_client, args)
        except (UnsupportedError, RegistryError, UsageError) as error:
            refusals.report(str(error))
            raise SystemExit(refusals.EXIT_CODE) from error
        state.ropeswitch = parts = _parts(engine_client, args, checked, state.openai_serving_models)
        _wrap(engine_client, checked)
        # A task lives only as long as something references it.
        queue_metrics = QueueMetrics(checked.front.queue, engine_client.model_config.served_model_name)
        state.ropeswitch_tasks = start_tasks(checked.front.queue.watch(queue_metrics.refresh))
        if parts.status.measured is not None:
            state.ropeswitch_tasks += start_tasks(parts.status.measured.history.watch())
        WATCH.start(engine_client, state, keep_alive=vllm_adapter.keeps_alive_without_engine())
        state.ropeswitch_tasks += start_tasks(
            ready.announce(state, args, vllm_adapter.first_request(engine_client, state))
        )


@dataclass(frozen=True)
class _Checked:
    """A fully patched engine.

    Attributes:
        settings: The ladder and the scheduling settings.
        ladder: The engine's ladder.
        patches: The patches that its processes run.
        front: API keys and request limits.
        admission: Admits prompts to the queue.
    """

    settings: RopeSettings
    ladder: EngineLadder
    patches: Sequence[Patch]
    front: FrontState
    admission: Admission


async def _checked(engine_client: Any, args: Namespace) -> _Checked:
    """Check the engine, its workers and the flags.

    Raises:
        UnsupportedError: when a worker lacks a patch or a factor set, or the engine was not started by us.
        RegistryError: when vLLM's server is not the one that we wrap.
        UsageError: when the API key file has become unreadable.
    """
    require(SERVER_PATCHES, UPSTREAM_TEXTS)
    settings = settings_of(engine_client.vllm_config) if engine_client is not None else None
    if settings is None or not isinstance(engine_client, RopeClient):
        raise UnsupportedError("VLLM_PLUGINS: ropeswitch needs an engine started by ropeswitch serve")
    patches = in_play(engine_client.vllm_config)
    check_reports(await engine_utilities.worker_reports(engine_client), settings.ladder, patches)
    if missing := [patch.target for patch in patches if patch.when == CLIENTS and patch.target not in applied()]:
        raise UnsupportedError(f"patch_report: the API server runs without the patch of {missing[0]}")
    max_model_len = engine_client.model_config.max_model_len
    waits = vllm_adapter.prompt_waits(engine_client)
    front, admission = build(args.ropeswitch_front, settings.ladder, max_model_len, waits, vllm_adapter.AdmissionError)
    return _Checked(settings, EngineLadder.of(settings, max_model_len), patches, front, admission)


def _parts(engine_client: Any, args: Namespace, checked: _Checked, models: Any) -> ServerParts:
    """Make every part of the process. Metrics need Prometheus, which vLLM has already set up."""
    settings, ladder, model = checked.settings, checked.settings.ladder, engine_client.model_config
    rope_info = rope_route.rope_info(settings, model.max_model_len, checked.patches)
    length_metrics = start_length_metrics(engine_client, checked.ladder)
    engines = engine_utilities.scheduling_reports(engine_client) if settings.length_aware else None
    log, registry = args.ropeswitch_access_log, vllm_adapter.metrics_registry()
    return ServerParts(
        front=checked.front,
        rope_info=rope_info,
        aliases=Aliases(models, ladder.names, args.ladder_aliases),
        status=status.StatusSource(
            model=model.served_model_name,
            rope=rope_info,
            registry=registry,
            measured=None
            if length_metrics is None
            else _measured(engine_client, length_metrics, ladder.names, registry),
        ),
        scheduling_metrics=None if engines is None else SchedulingMetrics(engines, model.served_model_name),
        length_metrics=length_metrics,
        access_log=None if log is None else start_access_log(log, ladder, engine_client),
        prefill_progress=engine_utilities.prefill_progress(engine_client),
        request_ids=args.enable_request_id_headers,
    )


def _measured(engine_client: Any, metrics: LengthMetrics, names: Sequence[str], registry: Any) -> status.Measured:
    """Return the measurements that the status page shows."""
    states, computed = engine_client.output_processor.request_states, engine_utilities.computed_tokens(engine_client)
    running = RunningSequences(states, names, computed)
    return status.Measured(metrics, running, History(registry, metrics.plan.bands), names)


def _wrap(engine_client: Any, checked: _Checked) -> None:
    """Change vLLM's own objects: the engine client and its parts."""
    if engine_client.output_processor.tracing_enabled:
        # OpenTelemetry's packages are required only with tracing.
        from ropeswitch.server.metrics import traces

        traces.start(engine_client.output_processor, checked.settings.ladder)
    separate_long_prompts(engine_client.renderer)
    length = vllm_adapter.prompt_length(engine_client.model_config)
    limits_output = engine_client.model_config.get_diff_sampling_param().get("max_tokens") is not None
    bounds_whitespace = engine_client.vllm_config.structured_outputs_config.disable_any_whitespace
    engine_client.prompts = Prompts(
        checked.ladder, checked.admission, length, limits_output=limits_output, bounds_whitespace=bounds_whitespace
    )


def _by_ropeswitch(args: Namespace) -> bool:
    """Whether ``ropeswitch serve`` started the server."""
    return hasattr(args, "ropeswitch_front")


def check_reports(reports: Sequence[dict[str, Any]], ladder: FactorLadder, patches: Sequence[Patch]) -> None:
    """Check that every worker runs every patch and the whole ladder.

    Args:
        reports: The ``patch_report`` of each worker.
        ladder: The ladder that the server was started with.
        patches: The patches that its engine needs.

    Raises:
        UnsupportedError: naming the worker and what it lacks.
    """
    if not reports:
        raise UnsupportedError("patch_report: no worker answered, so the engine's patches cannot be verified")
    for report in reports:
        needed = (patch.target for patch in patches if patch.when != CLIENTS)
        if missing := [target for target in needed if target not in report["patches"]]:
            raise UnsupportedError(f"patch_report: worker {report['rank']} runs without the patch of {missing[0]}")
        if tuple(report["sets"]) != ladder.names:
            raise UnsupportedError(
                f"patch_report: worker {report['rank']} rotates with the sets {', '.join(report['sets'])}, "
                f"the server with {', '.join(ladder.names)}"
            )
