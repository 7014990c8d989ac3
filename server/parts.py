"""The parts of one API server process, stored once in the app's state."""

from dataclasses import dataclass

from ropeswitch.server.access_log.log import AccessLog
from ropeswitch.server.front.queue_metrics import QueueMetrics
from ropeswitch.server.front.state import FrontState
from ropeswitch.server.ingest.progress import Progress
from ropeswitch.server.length_metrics.metrics import LengthMetrics
from ropeswitch.server.rope_route import RopeInfo
from ropeswitch.server.scheduling_metrics import SchedulingMetrics
from ropeswitch.server.ui.status import StatusSource


@dataclass(frozen=True)
class ServerParts:
    """The app's ``state.ropeswitch``, the only place from which middlewares and routes get their dependencies.

    Attributes:
        front: API keys and request limits.
        queue_metrics: Gauges of the queue.
        rope_info: The response of ``/v1/rope``.
        status: The source of the status page.
        scheduling_metrics: Gauges of the scheduler, None without length-aware scheduling.
        length_metrics: Metrics by length, None with ``--disable-log-stats``.
        access_log: The access log, None with ``--access-log off``.
        request_ids: Whether responses carry the header ``x-request-id``.
        prefill_progress: Returns a prompt's computed and cached tokens; made by
            :func:`~ropeswitch.server.engine_utilities.prefill_progress`.
    """

    front: FrontState
    queue_metrics: QueueMetrics
    rope_info: RopeInfo
    status: StatusSource
    scheduling_metrics: SchedulingMetrics | None
    length_metrics: LengthMetrics | None
    access_log: AccessLog | None
    prefill_progress: Progress
    request_ids: bool = False
