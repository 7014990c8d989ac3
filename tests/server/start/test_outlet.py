"""A reader of the server's output that stalls, comes back, or has left."""

import fcntl
import json
import os
import select
import time
from collections.abc import Iterator

import pytest

from ropeswitch.server.start.log import outlet
from ropeswitch.server.start.log.outlet import Outlet

LINE = b'{"time": "now"}\n'


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A pipe of one page, its reader first; a thousand lines may wait for the reader."""
    monkeypatch.setattr(outlet, "MOST_BYTES", 1000 * len(LINE))
    monkeypatch.setattr(outlet, "LAST_SECONDS", 0.2)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    os.close(writer)
    os.close(reader)


def pumped(writer: int) -> Outlet:
    made = Outlet(writer, '{{"dropped": {}}}\n')
    made.pump()
    return made


def write_until_dropped(made: Outlet, writer: int) -> int:
    """Write lines, which must not block, until the stream is full and some are dropped; return their number."""
    count, deadline = 0, time.monotonic() + 20
    while not made.dropped.value or select.select([], [made.fd], [], 0)[1]:
        assert time.monotonic() < deadline
        count += os.write(writer, LINE * 100) // len(LINE)
        time.sleep(0.001)
    return count


def read(reader: int, end: bytes) -> bytes:
    text = b""
    while end not in text:
        text += os.read(reader, 1 << 16)
    return text


def test_a_stalled_reader_blocks_no_writer_and_is_told_what_it_missed(stream: tuple[int, int]) -> None:
    reader, writer = stream
    made = pumped(writer)
    count, send = write_until_dropped(made, writer), made._send
    made._send = lambda data: (made.put(b"late\n") if b"dropped" in data else None, send(data))
    *kept, last, _ = read(reader, b"late\n").splitlines(keepends=True)
    dropped = count - len(kept)
    assert kept == [LINE] * len(kept) and json.loads(last) == {"dropped": dropped} and made.dropped.value == dropped
    long = b"x" * 100_000 + b"\n"
    os.write(writer, long)
    assert read(reader, b"\n") == long, "in one piece"
    made.close()
    assert os.fstat(writer).st_ino == os.fstat(made.fd).st_ino, "the stream itself, after the end"


def test_an_end_does_not_wait_for_a_stalled_reader(stream: tuple[int, int]) -> None:
    _, writer = stream
    made = pumped(writer)
    write_until_dropped(made, writer)
    made.close()
    os.write(writer, LINE * 1000)


def test_lines_that_nobody_reads_any_more_are_counted_and_stop_no_server(stream: tuple[int, int]) -> None:
    reader, writer = stream
    made = pumped(writer)
    gone, _ = os.pipe()
    os.dup2(gone, reader)
    deadline = time.monotonic() + 20
    while not made.dropped.value:
        assert time.monotonic() < deadline
        os.write(writer, LINE * 100)
    made.close()
