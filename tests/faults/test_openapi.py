"""Every route that the server tells of, with inputs drawn from its own description: none of them is a fault of the server.

The draws know no model's name and would let most answers be as long as they can, so both are put in.
"""

import random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.errors import UnsupportedSchema

from tests.faults.conftest import MODEL
from tests.faults.odd_values import RIGHT
from tests.faults.state import metrics, settle
from tests.server.running import Server

EXAMPLES = 40
# How often the model is the one that is served.
KNOWN = 0.95
# Its description has no fields.
UNDESCRIBED = {"/invocations"}
# With every field drawn hardly any body is right: fields that go together are not described. Half of them have only so
# many drawn ones, in a right body.
FEW = 2
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
FAULTS = 'data: {"error"', '"server_error"'


def tame(body: Any, rng: random.Random) -> Any:
    """A body that is for the served model, mostly, and asks for few tokens."""
    if not isinstance(body, dict):
        return body
    if rng.random() < KNOWN:
        body = body | {"model": MODEL}
    given = [each for each in LENGTHS if each in body]
    body |= {each: min(body[each], 2) for each in given if type(body[each]) is int}
    body |= {} if given else {"max_tokens": 2, "max_output_tokens": 2}
    return body | {"n": min(body["n"], 3)} if type(body.get("n")) is int else body


@st.composite
def those_that_can_be_drawn(draw: st.DrawFn, cases: st.SearchStrategy[Case]) -> Case:
    """The cases without those in which Schemathesis met a wrong value that it cannot write out."""
    try:
        return draw(cases)
    except UnsupportedSchema:
        reject()


@pytest.mark.full
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_input_is_a_fault_of_the_server(server: Server, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    rng = random.Random(7)
    answers: dict[str, dict[int, int]] = {}
    faults: list[Any] = []

    def check(case: Case) -> None:
        right = RIGHT.get(case.path)
        if right is not None and isinstance(case.body, dict) and rng.random() < 0.5:
            drawn = rng.sample(sorted(case.body), min(FEW, len(case.body)))
            case.body = right | {name: case.body[name] for name in drawn}
        case.body = tame(case.body, rng)
        response = case.call(base_url=server.url, timeout=60)
        seen = answers.setdefault(case.operation.label, {})
        seen[response.status_code] = seen.get(response.status_code, 0) + 1
        # The model lacks a route of vLLM's, or this cluster a way to scale.
        absent = response.status_code == 501 or case.path == "/scale_elastic_ep"
        if (response.status_code >= 500 and not absent) or all(each in response.text for each in FAULTS):
            faults.append((case.operation.label, response.status_code, case.query, case.body, response.text[-500:]))

    for result in schema.get_all_operations():
        operation = result.ok()
        once: dict[str, Any] = {"derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}
        drawn = settings(max_examples=EXAMPLES, phases=[Phase.generate], **once)
        try:
            drawn(given(those_that_can_be_drawn(operation.as_strategy(generation_mode=mode)))(check))()
        except Unsatisfiable:
            # It has no field that could be wrong.
            assert mode is GenerationMode.NEGATIVE and operation.path not in RIGHT.keys() - UNDESCRIBED
    assert not faults, faults[:3]
    # Of wrong bodies some are right but for a field that the route ignores; all routes must have refused some.
    wanted = 200 if mode is GenerationMode.POSITIVE else 400
    answered = {label.partition(" ")[2] for label, statuses in answers.items() if wanted in statuses}
    assert answered >= RIGHT.keys() - UNDESCRIBED, answers
    settle(server)
    assert not metrics(server).get("ropeswitch_requests_total{error}")
