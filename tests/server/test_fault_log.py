"""Errors of clients are no faults of the server, and are not logged as such."""

import logging
import sys

import pytest
from vllm.exceptions import VLLMValidationError

from ropeswitch.server.fault_log import is_fault
from ropeswitch.server.front.refusal import prompt_too_long
from ropeswitch.server.vllm_adapter import AdmissionError


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (VLLMValidationError("temperature must be non-negative"), False),
        (ValueError("an empty conversation"), False),
        (AdmissionError(prompt_too_long(5, 4)), False),
        (RuntimeError("a fault"), True),
        (KeyError("a fault"), True),
    ],
)
def test_tracebacks_are_of_faults_alone(error: Exception, logged: bool) -> None:
    try:
        raise error
    except Exception:
        record = logging.LogRecord("name", logging.ERROR, "file", 1, "Error", (), sys.exc_info())
    assert is_fault(record) is logged


def test_other_records_stay() -> None:
    assert is_fault(logging.LogRecord("name", logging.ERROR, "file", 1, "Error", (), None))
