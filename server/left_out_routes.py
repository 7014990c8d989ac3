"""Routes of vLLM that this server has nothing behind: a client that asks for one is told that there is none."""

from fastapi import FastAPI
from starlette.datastructures import State

# Elastic expert parallelism is refused at start (model_patches/switch/unsupported.py). Its route would have every other
# client refused while it waits for the requests in flight, and then fail.
_ELASTIC = frozenset({"/scale_elastic_ep", "/is_scaling_elastic_ep"})
# Only models of one kind have a handler; of others it answers 501, which counts as a fault.
_DECISIONS = "/v1/systemone"


def leave_out(app: FastAPI, state: State) -> None:
    """Take them away.

    Args:
        app: With all of its routes.
        state: The app's, with vLLM's handlers in it.
    """
    paths = _ELASTIC | ({_DECISIONS} if state.serving_structured_decisions is None else set())
    app.router.routes[:] = [each for each in app.routes if getattr(each, "path", None) not in paths]
