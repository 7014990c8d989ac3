"""Checks the TLS flags before the model is loaded, and reloads the TLS files when they change."""

import argparse
import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from ropeswitch.factors.errors import UsageError
from ropeswitch.server.front.files import WatchedFiles

LOOK_SECONDS = 1.0
_CERTIFICATES = (b"CERTIFICATE", b"X509 CERTIFICATE", b"TRUSTED CERTIFICATE")
_KEYS = (b"PRIVATE KEY", b"RSA PRIVATE KEY", b"EC PRIVATE KEY", b"DSA PRIVATE KEY", b"ENCRYPTED PRIVATE KEY")


def check(args: argparse.Namespace) -> None:
    """Refuse TLS flags that the server could not start with, or that would be ignored.

    Args:
        args: vLLM's arguments ``ssl_certfile``, ``ssl_keyfile``, ``ssl_ca_certs``, ``ssl_cert_reqs``, ``ssl_ciphers`` and
            ``enable_ssl_refresh``.

    Raises:
        UsageError: naming the flag and its value.
    """
    if not args.ssl_certfile:
        for flag in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers", "enable_ssl_refresh"):
            if value := getattr(args, flag):
                raise UsageError(f"--{flag.replace('_', '-')}: {value} would be ignored without --ssl-certfile")
        return
    if args.ssl_cert_reqs not in tuple(ssl.VerifyMode):
        raise UsageError(f"--ssl-cert-reqs: {args.ssl_cert_reqs} must be 0 (none), 1 (optional) or 2 (required)")
    if args.ssl_cert_reqs and not args.ssl_ca_certs:
        raise UsageError(f"--ssl-cert-reqs: {args.ssl_cert_reqs} needs --ssl-ca-certs to verify client certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, args)
    if args.ssl_ciphers:
        try:
            context.set_ciphers(args.ssl_ciphers)
        except ssl.SSLError as error:
            raise UsageError(f"--ssl-ciphers: {args.ssl_ciphers!r}: {_reason(error)}") from error


def load(context: ssl.SSLContext, args: argparse.Namespace) -> None:
    """Load the files that the flags name into a context.

    Raises:
        UsageError: naming the flag and its value; do not use the context after that.
    """
    certificate = f"--ssl-certfile: {args.ssl_certfile!r}"
    _check_pem("--ssl-certfile", args.ssl_certfile, _CERTIFICATES, "certificate")
    if args.ssl_keyfile:
        _check_pem("--ssl-keyfile", args.ssl_keyfile, _KEYS, "private key")
        certificate += f" with --ssl-keyfile {args.ssl_keyfile!r}"
    else:
        _check_pem("--ssl-certfile", args.ssl_certfile, _KEYS, "private key; give its file with --ssl-keyfile")
    try:
        context.load_cert_chain(args.ssl_certfile, args.ssl_keyfile, password=_no_password)
    except (OSError, ValueError) as error:
        raise UsageError(f"{certificate}: {_reason(error)}") from error
    if args.ssl_ca_certs:
        _check_pem("--ssl-ca-certs", args.ssl_ca_certs, _CERTIFICATES, "certificate")
        try:
            context.load_verify_locations(args.ssl_ca_certs)
        except OSError as error:
            raise UsageError(f"--ssl-ca-certs: {args.ssl_ca_certs!r}: {_reason(error)}") from error


def _check_pem(flag: str, path: str, labels: Sequence[bytes], what: str) -> None:
    """Refuse a file without a PEM block with one of these labels; OpenSSL's message names neither file nor fault.

    Raises:
        UsageError: naming the flag and the file.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{flag}: {path!r} cannot be read: {_reason(error)}") from error
    if not any(b"-----BEGIN " + label + b"-----" in content for label in labels):
        raise UsageError(f"{flag}: {path!r} has no PEM {what} (no line '-----BEGIN {labels[0].decode()}-----')")


async def refresh(args: argparse.Namespace, context: Callable[[], ssl.SSLContext | None]) -> None:
    """Reload the files whenever they change, forever.

    vLLM's own reload misses the second switch of a mounted secret's link, and serves a pair that does not match while a
    certificate is written before its key.

    Args:
        args: As for :func:`check`.
        context: Returns the server's TLS context; None before it takes connections.
    """

    def read() -> None:
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), args)
        if (served := context()) is not None:
            load(served, args)

    named = (args.ssl_certfile, args.ssl_keyfile, args.ssl_ca_certs)
    files = WatchedFiles([path for path in named if path], read)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        files.look()


def _no_password() -> str:
    raise ValueError("the key is encrypted, and a server cannot ask for its password; use an unencrypted key")


def _reason(error: Exception) -> str:
    """Return the message of OpenSSL or the operating system, without its numbers."""
    if isinstance(error, ssl.SSLError):
        # OpenSSL gives no reason for a PEM block that it cannot decode.
        reason = str(
            getattr(error, "reason", None) or "a PEM block cannot be decoded; the file is damaged or truncated"
        )
        if reason == "KEY_VALUES_MISMATCH":
            return "key values mismatch: the key does not belong to the certificate"
        return reason.replace("_", " ").lower() if reason.isupper() else reason
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
