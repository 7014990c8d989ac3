"""Ask a server for a pass key on both sides of its first switch of factor sets; exit with 1 if an answer is wrong.

Runs in the pod of `helm test` with only the standard library. Environment: SHORT_URL and LONG_URL, the servers for prompts
below and above the switch; API_KEY_FILE, empty for none; TIMEOUT, seconds for the whole test.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from typing import Any

KEY = "48213"
# The pass-key prompt of the LongRoPE paper, on which the bundled model was trained.
OPENING = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
FILLER = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
STATEMENT = f" The pass key is {KEY}. Remember it. {KEY} is the pass key."
REPLY_TOKENS = 44
DEADLINE = time.monotonic() + float(os.environ["TIMEOUT"])


def headers() -> dict[str, str]:
    """Return the headers of every request, with the first key of the key file if there is one."""
    shown = {"Content-Type": "application/json"}
    if path := os.environ["API_KEY_FILE"]:
        with open(path, encoding="ascii") as file:
            lines = [line.strip() for line in file]
        shown["Authorization"] = "Bearer " + next(line for line in lines if line and not line.startswith("#"))
    return shown


def call(url: str, body: Any = None) -> tuple[Any, Any]:
    """Return the headers and JSON of a response; the certificate is not verified, because it may not name the service."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, headers())
    left = max(1.0, DEADLINE - time.monotonic())
    unverified = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, timeout=left, context=unverified) as answer:
            return answer.headers, json.load(answer)
    except urllib.error.HTTPError as error:
        error.msg = f"{error.msg}: {error.read().decode(errors='replace')[:2000]}"
        raise


def wait(url: str) -> None:
    """Wait until the server is ready."""
    while True:
        try:
            call(url + "/health/ready")
            return
        except OSError as error:
            if time.monotonic() > DEADLINE:
                raise
            print(f"{url}: not ready: {error}", flush=True)
            time.sleep(2)


def ask(url: str, model: str, pieces: int) -> tuple[int, str | None, str]:
    """Return the prompt's tokens, its factor set and the reply, for a key in the middle of ``pieces`` filler texts."""
    before, after = FILLER * (pieces // 2), FILLER * (pieces - pieces // 2)
    text = f"{OPENING}{before}{STATEMENT}{after} What is the pass key?"
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": REPLY_TOKENS,
        "temperature": 0,
    }
    got, answer = call(url + "/v1/chat/completions", body)
    return answer["usage"]["prompt_tokens"], got["x-rope-factor-set"], answer["choices"][0]["message"]["content"] or ""


def check(url: str, model: str, pieces: int, expected: str) -> bool:
    """Ask, print the result, and return whether the set and the reply are right."""
    tokens, name, reply = ask(url, model, pieces)
    right = name == expected and KEY in reply
    print(f"{'ok' if right else 'WRONG'}: {tokens} tokens, set {name} (expected {expected}): {reply!r}", flush=True)
    return right


def main() -> bool:
    """Return whether the answers on both sides are right."""
    short, long = os.environ["SHORT_URL"], os.environ["LONG_URL"]
    for url in dict.fromkeys([short, long]):
        wait(url)
    model = call(short + "/v1/models")[1]["data"][0]["id"]
    rope = call(long + "/v1/rope")[1]
    first = rope["sets"][0]
    right = check(short, model, 2, first["name"])
    few, many = ask(short, model, 2)[0], ask(short, model, 4)[0]
    each = (many - few) / 2
    above = first["max_length"] + 2 * each
    if len(rope["sets"]) == 1 or above + each + REPLY_TOKENS > rope["max_model_len"]:
        print("nothing to ask above the switch: the server accepts no longer sequences", flush=True)
        return right
    return check(long, model, 2 + int((above - few) / each), rope["sets"][1]["name"]) and right


if __name__ == "__main__":
    try:
        sys.exit(0 if main() else 1)
    except OSError as failure:
        sys.exit(f"WRONG: {failure}")
