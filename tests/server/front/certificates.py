"""Certificates for servers on this machine."""

import subprocess
from pathlib import Path


def certificate(folder: Path, password: str | None = None) -> tuple[str, str]:
    """Write a certificate that signs itself, for a day, and its key; returns their paths."""
    folder.mkdir(exist_ok=True)
    paths = str(folder / "tls.crt"), str(folder / "tls.key")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 1 -subj /CN=test".split()
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", paths[0], "-keyout", paths[1]]
    protection = ["-noenc"] if password is None else ["-passout", f"pass:{password}"]
    subprocess.run([*command, *protection], check=True, capture_output=True)
    return paths
