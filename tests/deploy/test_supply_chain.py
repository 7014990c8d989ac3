"""What the images are made of: the CycloneDX list, and the page of licences."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.deploy.test_image import locked
from tests.docs.pages import ROOT


def write(kind: str, path: Path) -> str:
    command = [sys.executable, str(ROOT / "requirements" / "sbom.py"), kind, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sbom(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write("sbom", tmp_path_factory.mktemp("sbom") / "new folder" / "image.cdx.json")


def test_the_list_is_valid_cyclonedx_and_the_same_each_time(sbom: str, tmp_path: Path) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom) is None
    assert write("sbom", tmp_path / "again.json") == sbom


def test_the_list_has_every_package_that_the_lock_installs(sbom: str) -> None:
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


def test_the_list_says_which_package_needs_which(sbom: str) -> None:
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
