"""Removes routes of vLLM that cannot work here; clients get a 404."""

from fastapi import FastAPI
from starlette.datastructures import State

# Elastic expert parallelism is refused at start (model_patches/switch/models/unsupported.py). Its route would refuse every
# other request while it waits for those in flight, and then fail.
_ELASTIC = frozenset({"/scale_elastic_ep", "/is_scaling_elastic_ep"})
# Only one kind of model has a handler; for others the route answers 501, which counts as a fault.
_DECISIONS = "/v1/systemone"


def leave_out(app: FastAPI, state: State) -> None:
    """Remove the routes.

    Args:
        app: The app, with all of its routes.
        state: The app's state, with vLLM's handlers in it.
    """
    paths = _ELASTIC | ({_DECISIONS} if state.serving_structured_decisions is None else set())
    app.router.routes[:] = [each for each in app.routes if getattr(each, "path", None) not in paths]
