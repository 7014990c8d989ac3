"""The Dockerfile, as far as it can be tried where nothing builds images: linted, its sources, commands and entry point."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ropeswitch.models import BUNDLED_MODEL
from ropeswitch.server import health_check
from tests.docs.pages import ROOT
from tests.server.running import free_port, running

DOCKERFILE = ROOT / "Dockerfile"
# A context that is sent to a builder in a moment.
MOST_BYTES = 5 << 20
_CONTINUED = re.compile(r"\\\n\s*")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order: name and argument."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = _CONTINUED.sub(" ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, rest in instructions():
        if name == "FROM":
            found[rest.rpartition(" AS ")[2]] = []
        elif found:
            found[list(found)[-1]].append((name, rest))
    return found


def context(folder: Path = ROOT) -> list[Path]:
    """The files that .dockerignore leaves in the build context: rules of this one alone, the last that fits counts."""
    rules = [
        line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")
    ]
    kept = []
    tracked = subprocess.run(["git", "ls-files"], cwd=folder, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        ignored = False
        for rule in rules:
            pattern = rule.removeprefix("!").rstrip("/")
            parts = [name, *(str(each) for each in Path(name).parents)]
            if any(
                fnmatch(each, pattern) or (pattern.startswith("**/") and fnmatch(each, f"*{pattern[2:]}"))
                for each in parts
            ):
                ignored = not rule.startswith("!")
        if not ignored:
            kept.append(Path(name))
    return kept


def copied() -> set[str]:
    """What is copied from the context."""
    found: set[str] = set()
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            found |= {word for word in rest.split()[:-1] if not word.startswith("--")}
    return found


def test_it_is_linted() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_source_is_in_the_context_and_little_else() -> None:
    files = context()
    for source in copied():
        inside = [each for each in files if str(each) == source or str(each).startswith(source.rstrip("/") + "/")]
        assert inside, f"{source} is not sent to the builder"
    used = [each for each in files if any(str(each) == source or str(each).startswith(source) for source in copied())]
    assert used == files, set(files) - set(used)
    assert sum((ROOT / each).stat().st_size for each in files) < MOST_BYTES


def test_every_package_is_copied() -> None:
    """Of each package of the wheel, the folder that it lies in."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    folders = set(re.findall(r'^"ropeswitch\.\w+" = "(\w+)"$', text, re.MULTILINE))
    assert folders and {f"{each}/" for each in folders - {"deploy"}} <= copied()


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_it_runs_as_vllm_s_own_image_does(name: str) -> None:
    """Root by default, the cache at root's, and a health check."""
    stage = dict(stages()[name])
    assert "USER" not in stage and "USER=ropeswitch" in stage["ENV"]
    assert json.loads(stage["ENTRYPOINT"]) == ["ropeswitch-entrypoint"]
    lines = [f"{instruction} {rest}" for instruction, rest in stages()[name]]
    assert "COPY --chmod=755 deploy/image/entrypoint.sh /usr/local/bin/ropeswitch-entrypoint" in lines
    assert "RUN sh /src/cache.sh && rm -rf /src" in lines
    assert re.search(r"HF_HOME=/cache/huggingface\b", stage["ENV"])
    assert 'org.opencontainers.image.licenses="Apache-2.0"' in stage["LABEL"]
    assert "ropeswitch.server.health_check" in stage["HEALTHCHECK"]
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None and f'version="{version[1]}"' in stage["LABEL"]
    # Whatever is written is below the two folders that the chart mounts.
    paths = re.findall(r"(HOME|_ROOT|_DIR|_BASE)=(\S+)", stage["ENV"])
    assert paths and all(path.startswith("/cache") for _, path in paths)


def test_the_gpu_image_stands_on_the_pinned_release() -> None:
    arguments = dict(rest.split("=") for name, rest in instructions() if name == "ARG")
    pinned = re.search(r"^vllm==(.*)$", (ROOT / "requirements" / "cuda.lock").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None and arguments["VLLM_IMAGE"].endswith(f":v{pinned[1]}")


def test_the_image_has_what_the_tests_have() -> None:
    """The same versions, and nothing that is only there for tests."""
    image, whole = ({line.partition(" ")[0] for line, _ in locked(name)} for name in ("image-cpu.lock", "cpu.lock"))
    assert image < whole
    assert not {"pytest", "mypy", "ruff", "hypothesis"} & {line.partition("==")[0] for line in image}


def locked(name: str) -> list[tuple[str, list[str]]]:
    """The requirements of a lock, each with its hashes."""
    text = _CONTINUED.sub(" ", (ROOT / "requirements" / name).read_text(encoding="utf-8"))
    parts = [line.split(" --hash=") for line in text.splitlines()]
    return [(requirement.strip(), [each.strip() for each in hashes]) for requirement, *hashes in parts]


def test_what_the_image_installs_has_hashes() -> None:
    for name in ("image-cpu.lock", "build.lock"):
        for requirement, hashes in locked(name):
            assert hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), requirement
    [backend] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert [requirement for requirement, _ in locked("build.lock")] == [backend]


def test_a_file_that_the_lock_does_not_know_stops_the_build(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "requirements").mkdir(parents=True)
    lock = (ROOT / "requirements" / "build.lock").read_text(encoding="utf-8")
    wrong = re.sub("sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, lock)
    (source / "requirements" / "build.lock").write_text(wrong, encoding="utf-8")
    command = ["sh", str(ROOT / "deploy/image/wheel.sh"), str(source), str(tmp_path / "wheels")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "wheels").exists()


SERVE = ["ropeswitch", "serve"]
PROGRAMS = ("ropeswitch", "vllm", "python3", "sh")


@pytest.mark.parametrize(
    ("typed", "runs"),
    [
        # This project's.
        ([], SERVE),
        (["serve", "a/b", "--port", "80"], [*SERVE, "a/b", "--port", "80"]),
        (["plan", "a/b", "--gpu", "A100-80GB"], ["ropeswitch", "plan", "a/b", "--gpu", "A100-80GB"]),
        (["ropeswitch", "serve", "a/b"], [*SERVE, "a/b"]),
        # docs.vllm.ai, "Using Docker": arguments after vllm/vllm-openai, with and without the flag.
        (["--model", "mistralai/Mistral-7B-v0.1"], [*SERVE, "--model", "mistralai/Mistral-7B-v0.1"]),
        (["Qwen/Qwen3-0.6B", "--enable-lora"], [*SERVE, "Qwen/Qwen3-0.6B", "--enable-lora"]),
        # docs.vllm.ai, "Using Kubernetes".
        (
            ["sh", "-c", 'printf "%s|" vllm serve a/b --trust-remote-code "two words"'],
            ["vllm", "serve", "a/b", "--trust-remote-code", "two words"],
        ),
        # Platforms that name vLLM's program.
        (["vllm", "serve", "/mnt/models", "--port", "8000"], ["vllm", "serve", "/mnt/models", "--port", "8000"]),
        (
            ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/mnt/models"],
            ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/mnt/models"],
        ),
        # A folder is a model.
        (["/"], [*SERVE, "/"]),
        (["a b", "--chat-template", ""], [*SERVE, "a b", "--chat-template", ""]),
    ],
    ids=lambda value: " ".join(value) or "none",
)
def test_the_entry_point(tmp_path: Path, typed: list[str], runs: list[str]) -> None:
    """Programs of the image that print how they are run take the place of the real ones."""
    for program in PROGRAMS:
        if program != "sh":
            (tmp_path / program).write_text(f'#!/bin/sh\nprintf "%s|" {program} "$@"\n', encoding="utf-8")
            (tmp_path / program).chmod(0o755)
    entry = str(ROOT / "deploy" / "image" / "entrypoint.sh")
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run([entry, *typed], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.split("|")[:-1] == runs


def test_the_entry_point_runs_any_program(tmp_path: Path) -> None:
    program = tmp_path / "own program"
    program.write_text("#!/bin/sh\nexit 7\n", encoding="utf-8")
    program.chmod(0o755)
    entry = str(ROOT / "deploy" / "image" / "entrypoint.sh")
    assert subprocess.run([entry, str(program)], check=False).returncode == 7


def test_the_health_check_of_plain_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """`vllm serve` has /health alone."""

    class Plain(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.get(self.path, 404))
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    monkeypatch.delenv(health_check.VARIABLE, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(health_check, "URL", f"http://127.0.0.1:{server.server_port}/health/ready")
        for statuses, code in (
            ({"/health": 200}, 0),
            ({"/health": 503}, 1),
            ({}, 1),
            ({"/health/ready": 503, "/health": 200}, 1),
            ({"/health/ready": 200}, 0),
        ):
            assert health_check.main() == code, statuses
        server.shutdown()


def test_the_health_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for url in (f"http://127.0.0.1:{free_port()}/", "no address"):
        monkeypatch.setenv(health_check.VARIABLE, url)
        assert health_check.main() == 1
        assert url in capsys.readouterr().err


@pytest.mark.full
def test_its_commands_make_an_environment_that_serves(tmp_path: Path) -> None:
    """The context alone, and the scripts that the CPU image runs; then its entry point until its health check is content."""
    source = tmp_path / "source"
    for each in context():
        (source / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / each, source / each)
    wheels, target = tmp_path / "wheels", tmp_path / "environment"
    scripts = [rest for name, rest in instructions() if name == "RUN" and rest.startswith("sh ")]
    assert [each.split()[1].rpartition("/")[2] for each in scripts[:2]] == ["wheel.sh", "cpu.sh"]
    run(["sh", str(source / "deploy/image/wheel.sh"), str(source), str(wheels)])
    arguments = [str(source / "requirements/image-cpu.lock"), str(wheels), str(target)]
    # Half of the time would go to compiling modules that the server does not import.
    run(["sh", str(source / "deploy/image/cpu.sh"), *arguments], PIP_NO_COMPILE="1")
    flags = ["--model", str(BUNDLED_MODEL), "--served-model-name", BUNDLED_MODEL.name, "--enforce-eager"]
    path = {"PATH": f"{target / 'bin'}:{os.environ['PATH']}"}
    entry = str(source / "deploy/image/entrypoint.sh")
    with running(tmp_path, *flags, command=[entry], variables=path) as server:
        check = [str(target / "bin" / "python"), "-m", "ropeswitch.server.health_check"]
        run(check, **{health_check.VARIABLE: f"{server.url}/health/ready"})
        answer = server.post("/v1/completions", {"model": BUNDLED_MODEL.name, "prompt": "The", "max_tokens": 2})
        assert answer.json["usage"]["completion_tokens"] == 2
    assert server.process.returncode == 0


def run(command: list[str], **variables: str) -> None:
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
