"""The access log of one API server process: JSON lines on standard output, by the logger ``ropeswitch.access``."""

import json
import logging
from typing import Any, TextIO

from starlette.types import Scope

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.access_log.flags import AccessLogConfig
from ropeswitch.server.access_log.line import Names, fields
from ropeswitch.server.context import RequestContext
from ropeswitch.server.front.routes import is_metrics, is_probe, route_path
from ropeswitch.server.length_metrics.bands import Bands
from ropeswitch.server.length_metrics.fates import PATHS

LOGGER = "ropeswitch.access"


class AccessLog:
    """See the module.

    Args:
        config: What the flags say.
        names: What the fields of prompts are filled with.
        logger: Told the lines.
    """

    def __init__(self, config: AccessLogConfig, names: Names, logger: logging.Logger) -> None:
        self.keeps_prompts = config.prompts
        self._config = config
        self._names = names
        self._logger = logger

    def leaves_out(self, path: str) -> bool:
        """Whether requests to a path are not logged."""
        if path in self._config.left_out:
            return True
        return not self._config.everything and (is_probe(path) or is_metrics(path))

    def write(self, scope: Scope, context: RequestContext) -> None:
        """Log a request that is over."""
        path = route_path(scope)
        runs = bool(context.sequences) or (scope["method"] == "POST" and path in PATHS)
        line = fields(scope, path, context, self._names if runs else None)
        self._logger.info("%s", json.dumps(line))


def start(config: AccessLogConfig, ladder: FactorLadder, engine_client: Any) -> AccessLog:
    """Start the log of this process.

    Args:
        config: What the flags say.
        ladder: The ladder in force.
        engine_client: ``vllm.v1.engine.async_llm.AsyncLLM``.
    """
    # vLLM puts the process's name before every line that is written to sys.stdout, which would not be JSON any more.
    stream = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process lives
    measured = engine_client.logger_manager is not None
    names = Names(Bands(ladder), ladder.names, engine_client.model_config.served_model_name, measured)
    return AccessLog(config, names, logger(stream))


def logger(stream: TextIO) -> logging.Logger:
    """The logger, which writes to a stream and to nothing else; each line at once, as several processes share it."""
    made = logging.getLogger(LOGGER)
    made.setLevel(logging.INFO)
    made.propagate = False
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    made.handlers = [handler]
    return made
