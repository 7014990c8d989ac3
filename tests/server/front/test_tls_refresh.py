"""Certificates that are renewed while a server runs."""

import asyncio
import os
import ssl
from argparse import Namespace
from pathlib import Path

import pytest

from ropeswitch.server.front import tls
from tests.server.front.certificates import certificate


def mounted(folder: Path, name: str) -> None:
    """Mount a renewed secret as Kubernetes does: a link is turned to a new folder, and the old folder goes."""
    certificate(folder / name, name)
    link = folder / "data"
    old = link.resolve() if link.is_symlink() else None
    os.symlink(name, folder / "new")
    os.replace(folder / "new", link)
    if old is not None:
        for file in old.iterdir():
            file.unlink()
        old.rmdir()


def test_a_mounted_certificate_is_read_at_every_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.02)
    mounted(tmp_path, "one")
    args = Namespace(
        ssl_certfile=str(tmp_path / "data/tls.crt"), ssl_keyfile=str(tmp_path / "data/tls.key"), ssl_ca_certs=None
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load(context, args)

    async def served() -> str:
        """The name on the certificate that a new connection is given."""
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        server.close()
        return next(name for name in ("one", "two", "three") if pem.split() == certificates[name].split())

    certificates = {"one": (tmp_path / "one/tls.crt").read_text()}

    async def run() -> None:
        task = asyncio.create_task(tls.refresh(args, lambda: context))
        assert await served() == "one"
        for name in ("two", "three"):
            mounted(tmp_path, name)
            certificates[name] = (tmp_path / name / "tls.crt").read_text()
            await asyncio.sleep(0.3)
            assert await served() == name
        assert not caplog.records
        # A certificate without its key changes nothing, until its key is there.
        other, other_key = certificate(tmp_path / "other", "other")
        (tmp_path / "three/tls.crt").write_text(Path(other).read_text())
        await asyncio.sleep(0.3)
        assert await served() == "three"
        [record] = caplog.records
        assert "stays in force" in record.getMessage() and "mismatch" in record.getMessage()
        (tmp_path / "three/tls.key").write_text(Path(other_key).read_text())
        certificates["three"] = Path(other).read_text()
        await asyncio.sleep(0.3)
        assert await served() == "three"
        task.cancel()

    asyncio.run(run())


def test_a_task_that_fails_is_told_at_once() -> None:
    from ropeswitch.server.front.tasks import go_on

    async def fail() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        contexts: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
        tasks = go_on(fail())
        await asyncio.wait(tasks)
        await asyncio.sleep(0)
        assert [type(each["exception"]) for each in contexts] == [ZeroDivisionError]

    asyncio.run(run())
