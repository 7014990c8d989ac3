"""Nothing of a step on a GPU has the host wait: ``host_sync_cases.py``.

An engine on a CPU replaces functions of vLLM's for its whole process, so the cases run in one of their own.
"""

from pathlib import Path

import pytest

from tests.fresh_process import check_cases


@pytest.mark.full
def test_cases() -> None:
    check_cases(Path(__file__).with_name("host_sync_cases.py"), at_least=20)
