"""Builds the CPU image's file system as an ordinary user and runs it: no Docker, no registry, no root.

``make test-container`` runs it with any Python 3. It needs mmdebstrap, crun and newuidmap (Debian packages mmdebstrap, crun
and uidmap), user namespaces, and subordinate IDs in /etc/subuid and /etc/subgid. Arguments after the folder go to
mmdebstrap. An existing file system is run as it is.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("mmdebstrap", "crun", "newuidmap", "unshare")
MODEL = "/opt/ropeswitch/lib/python3.11/site-packages/ropeswitch/models/longrope-mini"
# The user namespace that `unshare --map-auto` makes: this user is 0 there, and the IDs of its own follow.
INSIDE = ["unshare", "--user", "--map-auto", "--map-root-user", "--mount"]
MOST_IDS = 65_535


def build(folder: Path, options: list[str]) -> None:
    """Make ``folder/root`` from the tracked files of this checkout, unless it exists."""
    if (folder / "root").exists():
        print(f"container: {folder / 'root'} is there; remove it to have it built again", flush=True)
        return
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    for name in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    script = str(source / "deploy" / "image" / "rootfs.sh")
    subprocess.run(["sh", script, str(source), str(folder / "root"), "--mode=unshare", *options], check=True)


def environment() -> list[str]:
    """The variables of the Dockerfile's CPU image."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stage = text.partition(" AS cpu\n")[2].partition("\nFROM ")[0]
    block = re.search(r"^ENV (.*?[^\\])$", stage, re.MULTILINE | re.DOTALL)
    assert block is not None
    words = block[1].replace("\\\n", " ").split()
    return [word.replace("$PATH", "/usr/local/bin:/usr/bin:/bin") for word in words]


def bundle(folder: Path, user: int, arguments: list[str], volume: Path | None = None) -> None:
    """Write ``folder/config.json``: a user namespace, the root read-only, no privileges; the host's network."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    subprocess.run(["crun", "spec", "--rootless"], cwd=folder, check=True)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    process, linux = config["process"], config["linux"]
    config["root"] = {"path": str(folder.parent / "root"), "readonly": True}
    process |= {"terminal": False, "user": {"uid": user, "gid": user}, "cwd": "/tmp", "noNewPrivileges": True}
    process |= {"args": arguments, "env": environment(), "capabilities": {}}
    mapping = [{"containerID": 0, "hostID": 1, "size": MOST_IDS}]
    linux |= {"uidMappings": mapping, "gidMappings": mapping}
    linux["namespaces"] = [each for each in linux["namespaces"] if each["type"] not in ("network", "cgroup")]
    linux.pop("resources", None)
    mounts = {each["destination"]: each for each in config["mounts"]}
    mounts.pop("/sys/fs/cgroup", None)
    mounts["/sys"] = {"type": "none", "source": "/sys", "options": ["rbind", "nosuid", "noexec", "nodev", "ro"]}
    for name, size in (("/dev/shm", "1g"), ("/tmp", "1g"), ("/cache", "1g")):
        mounts[name] = {"type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777", f"size={size}"]}
    if volume is not None:
        mounts["/root/.cache/huggingface"] = {"type": "none", "source": str(volume), "options": ["bind", "rw"]}
    config["mounts"] = [{**each, "destination": name} for name, each in mounts.items()]
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def crun(folder: Path, name: str) -> list[str]:
    """The command that runs a bundle. crun refuses hybrid hierarchies of cgroups, which an empty folder hides from it."""
    hidden = "mount -t tmpfs tmpfs /sys/fs/cgroup && " if Path("/sys/fs/cgroup/unified").exists() else ""
    run = f"exec crun --root '{folder / 'state'}' --cgroup-manager=disabled run --bundle '{folder / 'bundle'}' {name}"
    return [*INSIDE, "sh", "-c", hidden + run]


def serve(folder: Path, user: int) -> None:
    """Serve as a user, answer a chat, and end cleanly."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = ["ropeswitch-entrypoint", "--model", MODEL, "--served-model-name", "mini", "--enforce-eager"]
    arguments += ["--host", "127.0.0.1", "--port", address.partition(":")[2], "--kv-cache-memory-bytes", "1G"]
    bundle(folder / "bundle", user, arguments)
    server = subprocess.Popen(crun(folder, f"serve-{user}"))
    try:
        wait(server, address)
        body = {"model": "mini", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
        request = urllib.request.Request(
            f"http://{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            used = json.load(answer)["usage"]
        assert used["completion_tokens"] == 5, used
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(90)
    assert code == 0, f"exit code {code}"
    print(f"container: user {user}, root read-only: ready, answered a chat, ended with exit code 0", flush=True)


def wait(server: "subprocess.Popen[bytes]", address: str) -> None:
    """Until the server is ready."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://{address}/health/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if server.poll() is not None:
                raise SystemExit(f"the container ended with exit code {server.returncode}") from None
            time.sleep(1)
    raise SystemExit("the server was not ready within 600 s")


def keep_models(folder: Path) -> None:
    """Root writes models to a volume that lies where vllm/vllm-openai has it."""
    volume = folder / "models"
    volume.mkdir(exist_ok=True)
    volume.chmod(0o777)
    bundle(folder / "bundle", 0, ["sh", "-c", 'echo kept >"$HF_HOME/file" && ! touch /file'], volume)
    subprocess.run(crun(folder, "models"), check=True, stderr=subprocess.DEVNULL)
    assert (volume / "file").read_text(encoding="utf-8") == "kept\n"
    print(
        "container: a volume at /root/.cache/huggingface is HF_HOME's folder, and the root cannot be written",
        flush=True,
    )


def main(arguments: list[str]) -> None:
    """Build, then run as root and as another user of the container."""
    if os.geteuid() == 0:
        raise SystemExit("container: run as an ordinary user; as root this shows nothing about user namespaces")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise SystemExit(f"container: {', '.join(missing)} not found (Debian: apt install mmdebstrap crun uidmap)")
    folder = Path(arguments[0]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    build(folder, arguments[1:])
    keep_models(folder)
    for user in (0, 65_532):
        serve(folder, user)


if __name__ == "__main__":
    main(sys.argv[1:] or [str(ROOT / "build" / "container")])
