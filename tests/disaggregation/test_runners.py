"""The V2 runner on both servers, interpreted on the CPU (``tests/exactness/interpreted.py``)."""

import os
from pathlib import Path

from tests.disaggregation.servers import PATH, body, fetched, first_choice, pair
from tests.exactness.engines import prompts
from tests.exactness.reference import Reference
from tests.server.checkpoint import WINDOW
from tests.server.test_exactness import VOCABULARY

TESTS = Path(__file__).parents[1]


def test_v2(checkpoint: Path, reference: Reference, tmp_path: Path) -> None:
    paths = os.pathsep.join((str(TESTS / "exactness" / "spawned"), str(TESTS.parent), os.environ["PYTHONPATH"]))
    variables = {"VLLM_USE_V2_MODEL_RUNNER": "1", "ROPESWITCH_TEST_ASYNC": "1", "ROPESWITCH_TEST_TRITON": "0"}
    with pair(tmp_path, checkpoint, PYTHONPATH=paths, **variables) as started:
        lengths = (WINDOW - 3, WINDOW, WINDOW + 1)
        for length in lengths:
            [prompt] = prompts([length], VOCABULARY, seed=length)
            reference.check(prompt, *first_choice(started.proxy.post(PATH, body(prompt, 6))))
        assert fetched(started.decode) == sum(lengths)
