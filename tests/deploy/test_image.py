"""The images, as far as they can be tried where nothing builds them: linted, their sources, commands and entry point."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from fnmatch import fnmatch
from importlib.metadata import distributions
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from ropeswitch.models import BUNDLED_MODEL
from tests.deploy.chart.helm import notes
from tests.docs.pages import ROOT
from tests.server.running import running

DOCKERFILE, ENTRY = ROOT / "Dockerfile", ROOT / "deploy" / "image" / "entrypoint.sh"
# A context that is sent to a builder in a moment.
MOST_BYTES = 5 << 20
_CONTINUED = re.compile(r"\\\n\s*")


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions in order: name and argument."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = _CONTINUED.sub(" ", "\n".join(lines)).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined if line)]


def stage(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a stage."""
    found = instructions()
    start = (
        next(place for place, (word, rest) in enumerate(found) if word == "FROM" and rest.endswith(f" AS {name}")) + 1
    )
    return found[start : next((place for place in range(start, len(found)) if found[place][0] == "FROM"), len(found))]


def context() -> list[Path]:
    """Return the files that .dockerignore leaves in the build context; the last rule that fits counts."""
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kept = []
    for name in tracked.splitlines():
        ignored = False
        for rule in (rule for rule in rules if rule[:1] not in ("", "#")):
            pattern = rule.removeprefix("!").rstrip("/")
            patterns = [pattern, f"*{pattern[2:]}"] if pattern.startswith("**/") else [pattern]
            if any(fnmatch(str(part), each) for part in (name, *Path(name).parents) for each in patterns):
                ignored = not rule.startswith("!")
        if not ignored:
            kept.append(Path(name))
    return kept


def locked(name: str) -> list[tuple[str, list[str]]]:
    """Return the requirements of a lock, each with its hashes."""
    text = _CONTINUED.sub(" ", (ROOT / "requirements" / name).read_text(encoding="utf-8"))
    parts = [line.split(" --hash=") for line in text.splitlines()]
    return [(requirement.strip(), [each.strip() for each in hashes]) for requirement, *hashes in parts]


def run(command: list[str], **variables: str) -> None:
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_it_is_linted() -> None:
    run([str(Path(sys.executable).with_name("hadolint")), str(DOCKERFILE)])


def test_the_context_has_every_copied_source_and_package_and_little_else() -> None:
    copies = [rest.split()[:-1] for name, rest in instructions() if name == "COPY" and not rest.startswith("--from")]
    sources = {word for words in copies for word in words if not word.startswith("--")}
    files = context()
    for source in sources:
        assert any(f"{each}/".startswith(f"{source.rstrip('/')}/") for each in files), f"{source} is not sent"
    assert [each for each in files if not any(str(each).startswith(source) for source in sources)] == []
    assert sum((ROOT / each).stat().st_size for each in files) < MOST_BYTES
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    folders = set(re.findall(r'^"ropeswitch\.\w+" = "(\w+)"$', text, re.MULTILINE))
    assert folders and {f"{each}/" for each in folders - {"deploy"}} <= sources


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_it_runs_as_vllms_own_image_does(name: str) -> None:
    """Root by default, the cache at root's, a health check; what is written is below the folders that the chart mounts."""
    found = dict(stage(name))
    assert "USER" not in found and "USER=ropeswitch" in found["ENV"]
    assert json.loads(found["ENTRYPOINT"]) == ["ropeswitch-entrypoint"]
    assert ("COPY", "--chmod=755 deploy/image/entrypoint.sh /usr/local/bin/ropeswitch-entrypoint") in stage(name)
    assert ("RUN", "sh /src/cache.sh && rm -rf /src") in stage(name)
    assert re.search(r"HF_HOME=/cache/huggingface\b", found["ENV"])
    assert "ROPESWITCH_HEALTH_URL=http://127.0.0.1:8000/health" in found["ENV"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f'version="{project["version"]}"' in found["LABEL"]
    paths = re.findall(r"(HOME|_ROOT|_DIR|_BASE)=(\S+)", found["ENV"])
    assert paths and all(path.startswith("/cache") for _, path in paths)


def test_images_stand_on_the_pinned_releases() -> None:
    arguments = dict(rest.split("=") for name, rest in instructions() if name == "ARG")
    releases = [
        line.partition("==")[2] for name in ("cuda", "cpu") for line, _ in locked(f"{name}.lock") if "vllm" in line
    ]
    assert arguments["VLLM_IMAGE"].endswith(f":v{releases[0]}")
    for gpus, release in zip((1, 0), releases, strict=True):
        assert f", with vLLM {release} in" in notes({"parallelism": {"gpusPerNode": gpus}})
    assert re.fullmatch(r"python:3\.12-slim-bookworm@sha256:[0-9a-f]{64}", arguments["PYTHON_IMAGE"])
    image, whole = ({line.partition(" ")[0] for line, _ in locked(name)} for name in ("image-cpu.lock", "cpu.lock"))
    assert image < whole
    assert not {"pytest", "mypy", "ruff", "hypothesis"} & {line.partition("==")[0] for line in image}


@pytest.mark.full
def test_a_file_that_the_lock_does_not_know_stops_the_build(tmp_path: Path) -> None:
    for name in ("image-cpu.lock", "build.lock"):
        for requirement, hashes in locked(name):
            assert hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), requirement
    [backend] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert [requirement for requirement, _ in locked("build.lock")] == [backend]
    (tmp_path / "source" / "requirements").mkdir(parents=True)
    lock = (ROOT / "requirements" / "build.lock").read_text(encoding="utf-8")
    wrong = re.sub("sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, lock)
    (tmp_path / "source" / "requirements" / "build.lock").write_text(wrong, encoding="utf-8")
    command = ["sh", str(ROOT / "deploy/image/wheel.sh"), str(tmp_path / "source"), str(tmp_path / "wheels")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "wheels").exists()


# What a user types after the image's name, and what runs: ours, docs.vllm.ai's examples, and what platforms run.
TYPED = """
 => ropeswitch serve
serve a/b --port 80 => ropeswitch serve a/b --port 80
plan a/b --gpu A100-80GB => ropeswitch plan a/b --gpu A100-80GB
ropeswitch serve a/b => ropeswitch serve a/b
--model mistralai/Mistral-7B-v0.1 => ropeswitch serve --model mistralai/Mistral-7B-v0.1
Qwen/Qwen3-0.6B --enable-lora => ropeswitch serve Qwen/Qwen3-0.6B --enable-lora
sh -c 'printf "%s|" vllm serve a/b "two words"' => vllm serve a/b 'two words'
vllm serve /mnt/models --port 8000 => vllm serve /mnt/models --port 8000
python3 -m vllm.entrypoints.openai.api_server --model /m => python3 -m vllm.entrypoints.openai.api_server --model /m
/ => ropeswitch serve /
'a b' --chat-template '' => ropeswitch serve 'a b' --chat-template ''
"""


@pytest.mark.parametrize("line", TYPED.strip("\n").splitlines())
def test_the_image_runs_what_vllms_own_image_would(tmp_path: Path, line: str) -> None:
    """Programs that print how they are run take the place of the image's."""
    typed, runs = (shlex.split(part) for part in line.split("=>"))
    for program in ("ropeswitch", "vllm", "python3"):
        (tmp_path / program).write_text(f'#!/bin/sh\nprintf "%s|" {program} "$@"\n', encoding="utf-8")
        (tmp_path / program).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run([ENTRY, *typed], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.split("|")[:-1] == runs
    (tmp_path / "vllm").write_text("#!/bin/sh\nexit 7\n", encoding="utf-8")
    assert subprocess.run([ENTRY, str(tmp_path / "vllm")], check=False).returncode == 7


def link_packages(lock: str, target: Path) -> None:
    """Link this environment's packages of a lock into a new one, where pip finds the pinned releases and downloads none."""
    packages = target / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    pinned = {requirement.partition(" ")[0] for requirement, _ in locked(lock)}
    for found in distributions():
        for file in found.files or () if f"{canonicalize_name(found.name)}=={found.version}" in pinned else ():
            if not {"..", "__pycache__"} & {*file.parts}:
                source, made = Path(str(found.locate_file(file))), packages / file
                made.parent.mkdir(parents=True, exist_ok=True)
                os.link(source, made)
                # Compiling what the server imports takes minutes.
                if (compiled := Path(cache_from_source(str(source)))).exists() and source.suffix == ".py":
                    Path(cache_from_source(str(made))).parent.mkdir(exist_ok=True)
                    os.link(compiled, cache_from_source(str(made)))


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
    link_packages("image-cpu.lock", target)
    run(["sh", str(source / "deploy/image/cpu.sh"), *arguments], PIP_NO_COMPILE="1")
    flags = ["--model", str(BUNDLED_MODEL), "--served-model-name", BUNDLED_MODEL.name, "--enforce-eager"]
    path = {"PATH": f"{target / 'bin'}:{os.environ['PATH']}"}
    with running(tmp_path, *flags, command=[str(ENTRY)], variables=path) as server:
        check = json.loads(dict(stage("cpu"))["HEALTHCHECK"].partition(" CMD ")[2])
        run(check, **path, ROPESWITCH_HEALTH_URL=f"{server.url}/health")
        answer = server.post("/v1/completions", {"model": BUNDLED_MODEL.name, "prompt": "The", "max_tokens": 2})
        assert answer.json["usage"]["completion_tokens"] == 2
    assert server.process.returncode == 0


@pytest.mark.full
def test_the_same_sources_make_the_same_wheel_whenever_and_wherever_they_are_built(tmp_path: Path) -> None:
    wheels = []
    for folder, mode, seconds in (("a", 0o664, 1.5e9), ("another place", 0o600, 1.6e9)):
        source = tmp_path / folder / "source"
        for each in context():
            (source / each).parent.mkdir(parents=True, exist_ok=True)
            (source / each).write_bytes((ROOT / each).read_bytes())
            (source / each).chmod(mode)
            os.utime(source / each, (seconds, seconds))
        run(["sh", str(ROOT / "deploy/image/wheel.sh"), str(source), str(tmp_path / folder / "wheels")])
        wheels += (tmp_path / folder / "wheels").iterdir()
    assert len({wheel.read_bytes() for wheel in wheels}) == 1 < len(wheels)
    names = zipfile.ZipFile(wheels[0]).namelist()
    assert "ropeswitch/server/cli.py" in names and not [name for name in names if name.startswith("tests")]
