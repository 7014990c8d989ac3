"""The parts of one API server process, stored once in the app's state."""

from dataclasses import dataclass

from ropeswitch.server.app.aliases import Aliases
from ropeswitch.server.app.health import EngineWatch
from ropeswitch.server.app.routes import RopeInfo
from ropeswitch.server.front.access_log import AccessLog
from ropeswitch.server.front.bodies.progress import Progress
from ropeswitch.server.front.state import FrontState
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.scheduling_metrics import SchedulingMetrics
from ropeswitch.server.ui.status import StatusSource


@dataclass(frozen=True)
class ServerParts:
    """The app's ``state.ropeswitch``, the only place from which middlewares and routes get their dependencies."""

    front: FrontState
    engine_watch: EngineWatch
    rope_info: RopeInfo
    aliases: Aliases
    status: StatusSource
    scheduling_metrics: SchedulingMetrics | None  # None without length-aware scheduling
    length_metrics: LengthMetrics | None  # None with --disable-log-stats
    access_log: AccessLog | None  # None with --access-log off
    prefill_progress: Progress
    shows_cached: bool = True  # whether answers may tell how much of a prompt the prefix cache had
    request_ids: bool = False  # whether responses carry the header x-request-id
