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
from tests.pinned import pinned


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
        assert each["purl"] not in found and each["licenses"]
        found[each["purl"]] = {f"sha256:{digest['content']}" for digest in files["hashes"]}
    expected = {}
    for line, hashes in locked("image-cpu.lock"):
        requirement, _, marker = line.partition(" ; ")
        url = f"pkg:pypi/{requirement.replace('==', '@').replace('+', '%2B')}"
        if url in found or not marker:
            expected[url] = set(hashes)
    assert found == expected
    assert not {"pkg:pypi/colorama@0.4.6", "pkg:pypi/pywin32@312"} & found.keys()


def test_the_list_says_which_package_needs_which(sbom: str) -> None:
    needed = {each["ref"]: each.get("dependsOn", []) for each in json.loads(sbom)["dependencies"]}
    starlette, fastapi = (next(ref for ref in needed if f"/{name}@" in ref) for name in ("starlette", "fastapi"))
    assert starlette in needed[fastapi] and fastapi in needed["ropeswitch"]


@pinned
def test_the_page_of_licences_is_up_to_date(tmp_path: Path) -> None:
    """`make licences` writes it."""
    page = write("licences", tmp_path / "page.md")
    assert page == (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    assert "unknown" not in page and "| LGPL-2.1-only | pycountry" in page
