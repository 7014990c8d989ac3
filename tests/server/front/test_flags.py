"""The flags of keys and limits: what is refused at start, in one line that names flag, value and what is allowed."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.front import flags
from ropeswitch.server.front.limits.keys import digest
from tests.server.front.certificates import certificate
from tests.server.front.parts import taking


def taken(*argv: str, **more: Any) -> flags.FrontConfig:
    config: flags.FrontConfig = taking(*argv, **more).ropeswitch_front
    return config


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--max-body-bytes 12X", "'12X'"),
        ("--body-timeout 0", "'0'"),
        ("--max-queued-requests many", "'many'"),
        ("--max-queued-tokens middle=5", "short, long"),
        ("--max-sequences-per-key ٣", "whole number from 1"),
        ("--metrics-key schlüssel", "printable ASCII"),
        ("--api-key-file /none", "'/none'"),
        ("--metrics-key-file /none", "'/none'"),
    ],
)
def test_bad_values(argv: str, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        taken(*argv.split())
    message = str(refused.value)
    assert argv.split()[0] in message and expected in message, message
    assert "schlüssel" not in message and "\n" not in message


def test_keys_come_from_the_flag_or_else_the_variable_and_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("in-file\n")
    environment = {flags.KEY_VARIABLE: "variable", "OTHER": "x"}
    config = taken("--api-key-file", str(path), environment=environment, api_key=["one", "two", "one"])
    assert config.key_digests == (digest(b"one"), digest(b"two")) and config.key_file == str(path)
    assert environment == {"OTHER": "x"}
    config = taken(environment={flags.KEY_VARIABLE: "variable"})
    assert config.key_digests == (digest(b"variable"),) and config.key_file is None
    assert taken(environment={flags.KEY_VARIABLE: ""}).key_digests == ()


def test_the_config_holds_no_key_and_finds_its_files_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys").write_text("scraper\n")
    # A mounted secret may end in a newline.
    config = taken("--metrics-key", "metrics-secret\n", "--metrics-key-file", "keys", api_key=["api-secret"])
    assert config.metrics_digests == (digest(b"metrics-secret"),) and config.metrics_key_file == str(tmp_path / "keys")
    assert b"secret" not in pickle.dumps(config) and "secret" not in repr(config) and taken().metrics_key_file is None


def test_a_key_that_no_client_can_send() -> None:
    for source, keys in (("--api-key", ["good", "secret "]), ("--api-key", [""]), (flags.KEY_VARIABLE, None)):
        with pytest.raises(UsageError, match=f"^{source}: a key must be (?!.*secret)"):
            taken(environment={flags.KEY_VARIABLE: "secret \n"}, api_key=keys)


def test_stored_responses_that_another_key_could_read(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\n")
    store = {flags.STORE_VARIABLE: "1"}
    for argv, keys in (([], ["one", "two"]), (["--api-key-file", str(tmp_path / "keys")], None)):
        with pytest.raises(UsageError, match=f"^{flags.STORE_VARIABLE}: every key of --api-key and --api-key-file"):
            taken(*argv, environment=dict(store), api_key=keys)
        assert taken(*argv, environment={flags.STORE_VARIABLE: "0"}, api_key=keys)
    assert taken(environment=dict(store), api_key=["one", "one"]) and taken(environment=dict(store))


def test_cached_tokens_of_others_are_shown_only_if_asked_for() -> None:
    for argv, given, details in (
        ([], None, True),
        (["--prefix-cache-scope", "server"], None, False),
        (["--prefix-cache-scope", "server"], True, True),
        ([], False, False),
    ):
        args = taking(*argv, enable_prompt_tokens_details=given)
        assert args.enable_prompt_tokens_details is details


def test_a_tls_file_that_does_not_fit_is_named(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    both = {"ssl_certfile": cert, "ssl_keyfile": key}
    taken(**both, ssl_ca_certs=cert, ssl_cert_reqs=2, enable_ssl_refresh=True)
    _, other = certificate(tmp_path / "other")
    _, locked = certificate(tmp_path / "locked", password="four")
    for given, cause in (
        ({"ssl_certfile": None}, "No such file"),
        ({"ssl_keyfile": None}, "PEM"),
        ({"ssl_keyfile": other}, "mismatch"),
        ({"ssl_keyfile": locked}, "encrypted"),
        ({"ssl_ca_certs": "/none"}, "No such file"),
    ):
        with pytest.raises(UsageError, match=cause) as refused:
            taken(**both | given)
        assert all(file is None or repr(file) in str(refused.value) for file in (both | given).values())
