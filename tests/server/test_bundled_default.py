"""``ropeswitch serve`` without a model: the bundled one, which answers right in each of its factor sets."""

from pathlib import Path

import pytest
from openai import OpenAI

from ropeswitch.factors.evaluate.passkey import FILLER, OPENING, statement
from tests.server.running import running


@pytest.mark.full
def test_the_bundled_model_is_the_default(tmp_path: Path) -> None:
    with running(tmp_path, "--enforce-eager") as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        [model] = client.models.list()
        assert model.id == "longrope-mini"
        ladder = server.get("/v1/rope").json
        assert [each["max_length"] for each in ladder["sets"]] == [512, 1024, 32768, 262144]
        for pieces, name in ((5, "r1"), (15, "r2"), (200, "x64"), (700, "x512")):
            text = f"{OPENING}\n{FILLER * pieces}\n{statement('48213')}\n{FILLER * pieces}\nWhat is the pass key?"
            response = client.chat.completions.with_raw_response.create(
                model=model.id, messages=[{"role": "user", "content": text}], max_tokens=20, temperature=0
            )
            assert response.headers["x-rope-factor-set"] == name
            assert "48213" in response.parse().choices[0].message.content
