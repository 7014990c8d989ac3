"""``--middleware`` is imported before the engine starts."""

import pytest
from fastapi import FastAPI

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.flags.middleware import check


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Thing", "'Thing' must be MODULE.NAME"),
        ("no.such.Thing", "cannot be imported: No module named 'no'"),
        ("json.Thing", "cannot be imported: module 'json' has no attribute 'Thing'"),
        (".Thing", "'.Thing' must be MODULE.NAME"),
        ("json.dumps", "must be a class or a coroutine function, found function"),
    ],
)
def test_what_vllm_could_not_add_is_refused(path: str, expected: str) -> None:
    with pytest.raises(UsageError, match=r"^--middleware: ") as caught:
        check([path])
    assert expected in str(caught.value)


def test_what_vllm_can_add_passes() -> None:
    from vllm.entrypoints.serve.middleware.register import init_entrypoints_middleware  # where the rules come from

    assert init_entrypoints_middleware
    check([])
    check([f"{FastAPI.__module__}.FastAPI", "asyncio.sleep"])
