"""The parts of one API server process, stored once in the app's state."""

from dataclasses import dataclass

from ropeswitch.server.app.aliases import Aliases
from ropeswitch.server.app.routes import RopeInfo
from ropeswitch.server.front.access_log import AccessLog
from ropeswitch.server.front.bodies.progress import Progress
from ropeswitch.server.front.state import FrontState
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.scheduling_metrics import SchedulingMetrics
from ropeswitch.server.ui.status import StatusSource


@dataclass(frozen=True)
class ServerParts:
    """The app's ``state.ropeswitch``, the only place from which middlewares and routes get their dependencies.

    Attributes:
        front: API keys and request limits.
        rope_info: The response of ``/v1/rope``.
        aliases: The server's model names.
        status: The source of the status page.
        scheduling_metrics: Gauges of the scheduler, None without length-aware scheduling.
        length_metrics: Metrics by length, None with ``--disable-log-stats``.
        access_log: The access log, None with ``--access-log off``.
        prefill_progress: Returns a prompt's computed and cached tokens.
        request_ids: Whether responses carry the header ``x-request-id``.
    """

    front: FrontState
    rope_info: RopeInfo
    aliases: Aliases
    status: StatusSource
    scheduling_metrics: SchedulingMetrics | None
    length_metrics: LengthMetrics | None
    access_log: AccessLog | None
    prefill_progress: Progress
    request_ids: bool = False
