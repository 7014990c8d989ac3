"""A client that sends less than it should, over a plain socket."""

import select
import socket


def drip(opened: socket.socket, data: bytes, seconds: float) -> None:
    """Send one byte after the other, so many seconds apart, until the server answers."""
    for byte in data:
        opened.send(bytes([byte]))
        if select.select([opened], [], [], seconds)[0]:
            return
