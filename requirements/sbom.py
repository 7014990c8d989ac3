"""Writes the CPU image's bill of materials in CycloneDX, and its page of licences.

``python requirements/sbom.py sbom FILE`` and ``... licences FILE``, for the Dockerfile's Python on x86_64 Linux. Packages,
versions and hashes come from the lock, licences from the packages installed in the current environment.
"""

import re
import sys
import tomllib
import uuid
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "image-cpu.lock"
PLATFORM = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
# SPDX identifiers for packages' own wordings.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 3-Clause License": "BSD-3-Clause",
    "ISC License": "ISC",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}
# Licences of packages whose metadata names none, from their LICENSE files.
UNNAMED = {
    "cycler": "BSD-3-Clause",
    "jinja2": "BSD-3-Clause",
    "kiwisolver": "BSD-3-Clause",
    "mpmath": "BSD-3-Clause",
    "numba": "BSD-2-Clause",
    "oss-harmony": "Apache-2.0",
    "setuptools": "MIT",
    "sympy": "BSD-3-Clause",
}
# Licences that require more than keeping their notice.
DEMANDING = re.compile(r"GPL|MPL|Intel|Proprietary|unknown")


@dataclass(frozen=True)
class Package:
    """One package of the lock.

    Attributes:
        name: Normalised name.
        version: Exact version.
        hashes: SHA-256 of each of its files, in hexadecimal.
        licence: SPDX identifier or expression if it has one, else the licence as the package states it.
        needs: Names of the locked packages that it depends on directly.
    """

    name: str
    version: str
    hashes: tuple[str, ...]
    licence: str
    needs: tuple[str, ...]


def packages() -> list[Package]:
    """Return the packages that the lock installs in the image, sorted by name.

    Raises:
        SystemExit: if a package is not installed in this environment, so that its licence cannot be read.
    """
    environment = PLATFORM | python_of_the_image()
    text = re.sub(r"\\\n\s*", " ", LOCK.read_text(encoding="utf-8"))
    lines = {}
    for line in text.splitlines():
        words, *hashes = line.split(" --hash=sha256:")
        requirement = Requirement(words)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            lines[canonicalize_name(requirement.name)] = (str(requirement.specifier)[2:], tuple(map(str.strip, hashes)))
    found = []
    for name, (version, hashes) in sorted(lines.items()):
        try:
            needed = {
                canonicalize_name(each.name) for each in map(Requirement, requires(name) or []) if not each.marker
            }
            found.append(Package(name, version, hashes, licence(name), tuple(sorted(needed & lines.keys()))))
        except PackageNotFoundError:
            raise SystemExit(f"{name}: not installed here, so its licence is unknown; run `make setup`") from None
    return found


def python_of_the_image() -> dict[str, str]:
    """Return the environment markers of the Dockerfile's Python."""
    found = re.search(
        r"^ARG PYTHON_IMAGE=python:(3\.\d+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found is not None
    return {"python_version": found[1], "python_full_version": f"{found[1]}.0"}


def licence(name: str) -> str:
    """Return an installed package's stated licence; its classifier if the metadata holds the whole licence text."""
    if name in UNNAMED:
        return UNNAMED[name]
    data = metadata(name)
    stated = (data.get("License-Expression") or data.get("License") or "").strip()
    classified = [each.split(" :: ")[-1] for each in data.get_all("Classifier", []) if each.startswith("License ::")]
    first = stated.partition("\n")[0]
    if "\n" in stated and first not in SPDX:
        first = ""
    chosen = first or " AND ".join(classified) or "unknown"
    return SPDX.get(chosen, chosen)


def own_version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return version


def sbom() -> str:
    """Return the lock as CycloneDX 1.6 JSON; the same lock gives the same bytes."""
    make = LicenseFactory().make_from_string
    bom = Bom()
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, LOCK.read_text(encoding="utf-8"))
    # 1 January 2020, UTC, the time of the wheel's files.
    bom.metadata.timestamp = datetime(2020, 1, 1, tzinfo=UTC)
    bom.metadata.component = root = Component(
        name="ropeswitch",
        version=own_version(),
        type=ComponentType.APPLICATION,
        bom_ref="ropeswitch",
        licenses=[make("Apache-2.0")],
    )
    listed = packages()
    components = {}
    for each in listed:
        url = PackageURL("pypi", None, each.name, each.version)
        files = ExternalReference(
            type=ExternalReferenceType.DISTRIBUTION,
            url=XsUri(str(url)),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=value) for value in each.hashes],
        )
        components[each.name] = Component(
            name=each.name,
            version=each.version,
            type=ComponentType.LIBRARY,
            bom_ref=str(url),
            purl=url,
            licenses=[make(each.licence)],
            external_references=[files],
        )
        bom.components.add(components[each.name])
    bom.register_dependency(root, components.values())
    for each in listed:
        bom.register_dependency(components[each.name], [components[name] for name in each.needs])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def licences() -> str:
    """Return a Markdown page of the packages by licence; licences that require more than a notice come first."""
    by_licence = defaultdict(list)
    listed = packages()
    for each in listed:
        by_licence[each.licence].append(f"{each.name} {each.version}")
    order = sorted(by_licence, key=lambda name: (DEMANDING.search(name) is None, name.lower()))
    rows = "\n".join(f"| {name} | {', '.join(by_licence[name])} |" for name in order)
    demanding = sum(len(by_licence[name]) for name in order if DEMANDING.search(name))
    return f"""# Licences of the CPU image

`make licences` writes this page from `requirements/image-cpu.lock` and its packages' declarations. Each package's
licence text is in its `.dist-info` folder in the image. {demanding} of {len(listed)} packages require more than keeping
their notice, or have their own terms; they come first.

| Licence | Packages |
| --- | --- |
{rows}

Licences of Debian's packages in the image are in `/usr/share/doc/*/copyright`. The GPU image adds only ropeswitch
(Apache-2.0) to vLLM's image.
"""


if __name__ == "__main__":
    made = {"sbom": sbom, "licences": licences}[sys.argv[1]]()
    file = Path(sys.argv[2])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(made, encoding="utf-8")
    print(f"{sys.argv[1]}: {file}")
