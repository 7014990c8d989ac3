"""Keys of ``vllm_xargs`` that nothing reads, and misspelled roles."""

import difflib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from ropeswitch.server import xargs_readers
from ropeswitch.server.body_errors import misspelled, name_wrong_fields
from ropeswitch.server.xargs_readers import others_read_xargs
from tests.server.front.parts import app_behind, ask, parts


class Body(BaseModel):
    messages: list[dict[str, str]]


def found(body: Any, *, others: bool) -> list[tuple[Any, ...]]:
    return [each["loc"] for each in misspelled(body, others=others)]


@pytest.mark.parametrize("key", ["rope_factor_sets", "rope_set", "ROPE_factor_set", "factor_set", "ladder_policy"])
@pytest.mark.parametrize("others", [False, True])
def test_keys_like_ours_are_refused(key: str, others: bool) -> None:
    assert found({"vllm_xargs": {"rope_factor_set": "long", key: 5}}, others=others) == [("vllm_xargs", key)]


def test_other_keys_are_refused_where_nothing_reads_them() -> None:
    body = {"vllm_xargs": {"ngram_size": 5}}
    assert found(body, others=False) == [("vllm_xargs", "ngram_size")] and not found(body, others=True)


def test_of_many_or_long_words_few_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def close(word: str, *_: Any) -> list[str]:
        compared.append(word)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", close)
    long = "factor_set" * 100_000
    keys = dict.fromkeys([long, "ngram_size", *(f"k{each}" for each in range(100_000))], 1)
    assert not found({"vllm_xargs": keys}, others=True)
    assert "ngram_size" in compared and len(compared) < 150 and max(map(len, compared)) <= 40
    # Those that begin like ours are refused wherever they stand.
    assert found({"vllm_xargs": keys | {"Rope_x": 1}}, others=True) == [("vllm_xargs", "Rope_x")]


@pytest.mark.parametrize(
    "body",
    [
        {"vllm_xargs": {"rope_factor_set": "long", "rope_ladder_policy": "length", "session_id": "a"}},
        {"vllm_xargs": None},
        {"vllm_xargs": [1]},
        {"messages": "a"},
        {"messages": [{"role": each} for each in ("user", "tool", "model", "ipython", "documents", "critic", 5, None)]},
        [1],
    ],
)
def test_right_bodies_and_those_that_others_refuse(body: Any) -> None:
    assert not found(body, others=False)


@pytest.mark.parametrize("role", ["usr", "User", "assitant", "sytem", "assistnat", "developper", "tood"])
def test_misspelled_roles(role: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}, {"role": role, "content": "a"}]}
    assert found(body, others=True) == [("messages", 1, "role")]
    (error,) = misspelled(body, others=True)
    assert "; did you mean '" in error["msg"]


@pytest.mark.parametrize(
    "role", ["function_call", "functions", "tools", "assistant2", "users", "human", "tool_use", "Users", "us", ""]
)
def test_roles_of_models(role: str) -> None:
    assert not found({"messages": [{"role": role}]}, others=True)


def test_roles_of_the_chat_template(tmp_path: Path) -> None:
    body = {"messages": [{"role": "tood"}]}
    for template, refused in (("role == 'tood'", False), ('role in ["tood"]', False), ("role == 'tool'", True)):
        assert bool(misspelled(body, others=True, template=template)) == refused
        app = app_behind(parts(tmp_path)[0])

        @app.post("/v1/body")
        async def take(body: Body) -> None: ...

        name_wrong_fields(app, template=template)
        assert ask(app, "POST", "/v1/body", json=body).status_code == (400 if refused else 200)


def test_who_may_read_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(**changes: Any) -> Any:
        model = {"logits_processors": None, "is_diffusion": False}
        whole = {"kv_transfer_config": None, "ec_transfer_config": None}
        parallel = {"worker_extension_cls": ""}
        parts = [each | {name: changes[name] for name in each if name in changes} for each in (model, whole, parallel)]
        return SimpleNamespace(
            model_config=SimpleNamespace(**parts[0]), parallel_config=SimpleNamespace(**parts[2]), **parts[1]
        )

    assert not others_read_xargs(config())
    for name in (
        "logits_processors",
        "is_diffusion",
        "kv_transfer_config",
        "ec_transfer_config",
        "worker_extension_cls",
    ):
        assert others_read_xargs(config(**{name: "given"})), name
    plugin = SimpleNamespace(name="theirs", value="theirs.plugin:register")
    monkeypatch.setattr(
        xargs_readers, "entry_points", lambda group: [plugin] if group == "vllm.general_plugins" else []
    )
    assert not others_read_xargs(config())
    monkeypatch.setenv("VLLM_PLUGINS", "ropeswitch,theirs")
    assert others_read_xargs(config())
