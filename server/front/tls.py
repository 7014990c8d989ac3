"""Checks the TLS files before the model is loaded; vLLM loads them after that."""

import argparse
import ssl

from ropeswitch.factors.errors import UsageError


def check(args: argparse.Namespace) -> None:
    """Load the TLS files once.

    Args:
        args: vLLM's arguments ``ssl_certfile``, ``ssl_keyfile`` and ``ssl_ca_certs``.

    Raises:
        UsageError: naming the flag and the file.
    """
    if not args.ssl_certfile:
        if args.ssl_keyfile:
            raise UsageError(f"--ssl-keyfile: {args.ssl_keyfile!r} needs --ssl-certfile")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    flag = f"--ssl-certfile: {args.ssl_certfile!r}"
    flag += f" with --ssl-keyfile {args.ssl_keyfile!r}" if args.ssl_keyfile else " without --ssl-keyfile"
    try:
        context.load_cert_chain(args.ssl_certfile, args.ssl_keyfile, password=_no_password)
        flag = f"--ssl-ca-certs: {args.ssl_ca_certs!r}"
        if args.ssl_ca_certs:
            context.load_verify_locations(args.ssl_ca_certs)
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag}: {error}. Use PEM files, and the certificate's own unencrypted key.") from error


def _no_password() -> str:
    raise ValueError("the key is encrypted")
