"""What the images are made of: the CycloneDX list, the page of licences, and base images by digest."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests import debian
from tests.deploy.test_image import DOCKERFILE, locked
from tests.docs.pages import ROOT
from tests.server.running import free_port

REGISTRY = ROOT / ".venv" / "debian" / "registry"


def write(kind: str, path: Path) -> str:
    command = [sys.executable, str(ROOT / "requirements" / "sbom.py"), kind, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write("sbom", tmp_path_factory.mktemp("sbom") / "new folder" / "image.cdx.json")


def test_it_holds_to_the_schema_and_is_the_same_each_time(sbom: str, tmp_path: Path) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom) is None
    assert write("sbom", tmp_path / "again.json") == sbom


def test_it_lists_what_the_lock_installs(sbom: str) -> None:
    """What a marker leaves out of the image's Linux and Python is left out."""
    found = {}
    for each in json.loads(sbom)["components"]:
        [files] = each["externalReferences"]
        found[each["purl"]] = {digest["content"] for digest in files["hashes"]}
        assert each["licenses"]
    expected, left_out = {}, set()
    for line, hashes in locked("image-cpu.lock"):
        requirement, _, marker = line.partition(" ; ")
        name, _, version = requirement.partition("==")
        url = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
        expected[url] = {each.removeprefix("sha256:") for each in hashes}
        if marker:
            left_out.add(url)
    assert found.items() <= expected.items() and expected.keys() - found.keys() <= left_out
    assert {"pkg:pypi/colorama@0.4.6", "pkg:pypi/pywin32@312"} <= expected.keys() - found.keys()
    names = [url.partition("@")[0] for url in found]
    assert len(set(names)) == len(names)


def test_it_tells_what_needs_what(sbom: str) -> None:
    needed = {each["ref"]: each.get("dependsOn", []) for each in json.loads(sbom)["dependencies"]}
    starlette, fastapi = (next(ref for ref in needed if f"/{name}@" in ref) for name in ("starlette", "fastapi"))
    assert starlette in needed[fastapi] and fastapi in needed["ropeswitch"]


def test_the_page_of_licences_is_up_to_date(tmp_path: Path) -> None:
    """`make licences` writes it."""
    page = write("licences", tmp_path / "page.md")
    assert page == (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    assert "unknown" not in page and "| LGPL-2.1-only | pycountry" in page


def test_a_wrong_command_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "requirements" / "sbom.py"), "text", str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == "usage: sbom.py {sbom,licences} FILE\n"


def test_the_python_image_is_named_by_its_digest() -> None:
    [line] = re.findall(r"^ARG PYTHON_IMAGE=(.*)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert re.fullmatch(r"python:3\.12-slim-bookworm@sha256:[0-9a-f]{64}", line)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry of Debian's on this machine, and skopeo, in the path of commands."""
    port = free_port()
    config = tmp_path / "registry.yaml"
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "blobs")}}
    text = json.dumps({"version": 0.1, "storage": storage, "http": {"addr": f"127.0.0.1:{port}"}})
    config.write_text(text, encoding="utf-8")
    with (tmp_path / "log").open("wb") as log:
        command = [str(REGISTRY / "usr/bin/docker-registry"), "serve", str(config)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        retry = ["--silent", "--show-error", "--retry", "60", "--retry-delay", "1", "--retry-connrefused"]
        subprocess.run(["curl", *retry, f"http://127.0.0.1:{port}/v2/"], check=True, capture_output=True)
        yield f"127.0.0.1:{port}"
        process.terminate()
        process.wait()


def skopeo(*arguments: str) -> str:
    program = [str(REGISTRY / "usr/bin/skopeo"), *arguments]
    done = subprocess.run(program, env=debian.environment(REGISTRY), capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.full
def test_digests_are_renewed(registry: str, tmp_path: Path) -> None:
    """Images of one empty layer, pushed to a real registry; then one that it does not have."""
    layout = tmp_path / "image"
    images = {}
    for name, words in (("org/python", "one"), ("org/vllm", "two")):
        empty_image(layout, words)
        skopeo(
            "copy", "--dest-tls-verify=false", "--insecure-policy", f"oci:{layout}", f"docker://{registry}/{name}:v1"
        )
        images[name] = skopeo(
            "inspect", "--tls-verify=false", "--format", "{{.Digest}}", f"docker://{registry}/{name}:v1"
        )
        shutil.rmtree(layout)
    assert len(set(images.values())) == 2
    file = tmp_path / "Dockerfile"
    old = f"{registry}/org/python:v1@sha256:{'0' * 64}"
    text = f"ARG VLLM_IMAGE={registry}/org/vllm:v1\nARG PYTHON_IMAGE={old}\nFROM ${{VLLM_IMAGE}}\n"
    file.write_text(text, encoding="utf-8")
    done = renew(file)
    assert done.returncode == 0, done.stderr
    expected = (
        f"ARG VLLM_IMAGE={registry}/org/vllm:v1@{images['org/vllm']}\n"
        f"ARG PYTHON_IMAGE={registry}/org/python:v1@{images['org/python']}\nFROM ${{VLLM_IMAGE}}\n"
    )
    assert file.read_text(encoding="utf-8") == expected
    gone = text.replace("org/python", "org/gone")
    file.write_text(gone, encoding="utf-8")
    done = renew(file)
    assert done.returncode != 0 and "manifest unknown" in done.stderr and file.read_text(encoding="utf-8") == gone


def renew(file: Path) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(ROOT / "deploy" / "image" / "digests.sh"), str(file)]
    variables = debian.environment(REGISTRY) | {"SKOPEO_FLAGS": "--tls-verify=false"}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def empty_image(folder: Path, words: str) -> None:
    """An OCI layout of an image without layers; ``words`` make its digest its own."""
    from hashlib import sha256

    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(kind: str, value: object) -> dict[str, object]:
        data = json.dumps(value).encode()
        (blobs / sha256(data).hexdigest()).write_bytes(data)
        return {
            "mediaType": f"application/vnd.oci.image.{kind}+json",
            "digest": f"sha256:{sha256(data).hexdigest()}",
            "size": len(data),
        }

    config = {
        "architecture": "amd64",
        "os": "linux",
        "author": words,
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": []},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1", config),
        "layers": [],
    }
    index = {"schemaVersion": 2, "manifests": [blob("manifest.v1", manifest)]}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', encoding="utf-8")
