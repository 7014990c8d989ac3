"""Right requests with one field made odd are answered or refused, and never a fault of the server."""

from typing import Any

import httpx2
import pytest

from tests.faults.odd_values import RIGHT, bodies, fields_of
from tests.faults.state import metrics, settle
from tests.server.running import Server


@pytest.mark.full
@pytest.mark.parametrize("path", RIGHT)
def test_every_field_made_odd(server: Server, path: str) -> None:
    settle(server)
    before = metrics(server).get("ropeswitch_requests_total{error}", 0)
    faults: list[Any] = []
    statuses: dict[int, int] = {}
    with httpx2.Client(base_url=server.url, timeout=60, headers={"content-type": "application/json"}) as client:
        for body in bodies(path, fields_of(server.get("/openapi.json").json, path)):
            answer = client.post(path, content=body)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            failed = '"server_error"' in answer.text and 'data: {"error"' in answer.text
            if answer.status_code >= 500 or failed:
                faults.append((body[:500], answer.status_code, answer.text[-300:]))
            elif answer.status_code >= 400:
                assert len(answer.json()["error"]["message"]) > 10, (body[:500], answer.text)
    print(path, statuses)
    assert not faults, (len(faults), faults[:5])
    assert statuses[200] and statuses[400]
    settle(server)
    assert metrics(server).get("ropeswitch_requests_total{error}", 0) == before
