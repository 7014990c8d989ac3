"""Looks up a model's name on the hub once, with short timeouts, before vLLM sends the hub many requests."""

import os
import re
import sys
from argparse import Namespace
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.model_folder import expanded, similar_folders

SECONDS = 8.0
OFFLINE = "HF_HUB_OFFLINE"
# A model, or a tokenizer, has at least one of these files; the hub is asked for the first.
_MODEL_FILES = ("config.json", "params.json")
_TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "tekken.json", *_MODEL_FILES)
# Reason for each value of the hub's x-error-code header.
_REASONS = {
    "RepoNotFound": "the hub has no such model, or it is private; check the name, or set HF_TOKEN to a token with access",
    "RevisionNotFound": "the hub has the model but not this revision; check --revision",
    "GatedRepo": "the hub serves this model only to users who have accepted its terms; set HF_TOKEN to such a user's token",
}
_USER = re.compile(r"(?<=//)[^/\s]*@")
_STATUS = {401: "RepoNotFound", 403: "GatedRepo", 404: "RepoNotFound"}


def check_models(args: Namespace) -> None:
    """Check the names of the model and the tokenizer.

    Raises:
        UsageError: as :func:`check_hub`.
    """
    token = args.hf_token if isinstance(args.hf_token, str) else None
    if model := args.model_tag or args.model:
        check_hub("MODEL", model, args.revision, token, args.download_dir)
    if args.tokenizer:
        revision = args.tokenizer_revision or args.revision
        check_hub("--tokenizer", args.tokenizer, revision, token, args.download_dir)


def check_hub(
    flag: str, model: str, revision: str | None = None, token: str | None = None, download_dir: str | None = None
) -> None:
    """Check that a model that is not a local folder is in the hub's cache, or that the hub serves it.

    Args:
        flag: The argument that named it, for the message: ``MODEL``, or ``--tokenizer``, which needs no config.
        model: A folder or a name on a hub.
        revision: The branch, tag or commit, or None for ``main``.
        token: The user's token; None for the one in the environment or of an earlier login.
        download_dir: A folder to search in addition to the hub's cache, or None.

    Raises:
        UsageError: naming the missing folder, folders with similar names, and the reason that the hub gave.
    """
    if expanded(flag, model).exists() or ":" in model or os.environ.get("VLLM_USE_MODELSCOPE", "0") not in ("0", ""):
        return
    _check_endpoint(os.environ.get("HF_ENDPOINT", ""))
    # Imported here: it takes half a second.
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    files = _TOKENIZER_FILES if flag == "--tokenizer" else _MODEL_FILES
    try:
        cached = any(
            isinstance(try_to_load_from_cache(model, name, cache_dir=folder, revision=revision), str)
            for folder in {None, download_dir}
            for name in files
        )
    except HFValidationError as error:
        raise UsageError(_missing(flag, model, f"it is not a valid model name either: {error}")) from error
    if cached:
        return
    if constants.HF_HUB_OFFLINE or os.environ.get(OFFLINE, "").upper() in constants.ENV_VARS_TRUE_VALUES:
        reason = f"it is not in the hub's cache, and {OFFLINE} is set; unset it, or download the model first"
        raise UsageError(_missing(flag, model, reason))
    answer = _answer(model, files[0], revision or "main", token)
    if answer is not None:
        raise UsageError(_missing(flag, model, answer))


def cache_folder(model: str, download_dir: str | None) -> Path | None:
    """Return a model's folder in the hub's cache, which may not exist yet; None for a model that is a local folder.

    Args:
        model: A folder or a name on a hub.
        download_dir: A folder to use instead of the hub's cache, or None.
    """
    if Path(model).expanduser().exists():
        return None
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(download_dir or constants.HF_HUB_CACHE, repo_folder_name(repo_id=model, repo_type="model"))


def _check_endpoint(address: str) -> None:
    try:
        valid = not address or (urlsplit(address).port or 1) > 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"HF_ENDPOINT: {_shown(address)!r} is not a valid URL; use one such as https://HOST:PORT")


def _missing(flag: str, model: str, reason: str) -> str:
    return f"{flag}: {model!r} is not a local folder{similar_folders(model)}; {reason}"


def _shown(endpoint: str) -> str:
    """Return the scheme, host and port of a URL, without any user name and password."""
    scheme, slashes, rest = endpoint.rpartition("://")
    return scheme + slashes + rest.rpartition("@")[2].partition("/")[0]


def _without_users(text: str, endpoint: str) -> str:
    """Return an error's text without the credentials in URLs, and without the endpoint's credentials anywhere else."""
    user, _, _ = endpoint.rpartition("://")[2].rpartition("@")
    for secret in (user, user.partition(":")[2]):
        text = text.replace(secret, "***") if secret else text
    return _USER.sub("", text)


def _answer(model: str, file: str, revision: str, token: str | None) -> str | None:
    """Return why the hub does not serve a model; None if it does, or if its response is inconclusive."""
    from huggingface_hub import constants, get_session, hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers

    url = hf_hub_url(model, file, revision=revision)
    headers = build_hf_headers(token=token)
    answers: Queue[Any] = Queue()

    def ask() -> None:
        try:
            answers.put(get_session().head(url, headers=headers, timeout=SECONDS, follow_redirects=False))
        except Exception as error:  # of whichever HTTP library the hub's client uses
            answers.put(error)

    # In a thread: the connection timeout applies to each of the host's addresses, and name resolution has none.
    Thread(target=ask, daemon=True).start()
    print(f"ropeswitch: looking up {model!r} on the hub", file=sys.stderr, flush=True)
    try:
        answer = answers.get(timeout=SECONDS + 1)
    except Empty:
        answer = TimeoutError(f"no answer in {SECONDS:g} s")
    if isinstance(answer, Exception):
        reason = _without_users(str(answer), constants.ENDPOINT) or type(answer).__name__
        advice = "check the network, the proxy and HF_ENDPOINT, or give the model's folder"
        return f"the hub at {_shown(constants.ENDPOINT)} cannot be reached ({reason}); {advice}"
    code = answer.headers.get("x-error-code") or _STATUS.get(answer.status_code, "")
    if code in _REASONS:
        return f"{_REASONS[code]} ({answer.status_code} from {_shown(constants.ENDPOINT)})"
    return None
