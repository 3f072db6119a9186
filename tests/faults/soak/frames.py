"""Frames of HTTP/2, as attackers write them."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
CANCEL = 8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def opening(*settings: tuple[int, int]) -> bytes:
    """Returns the bytes with which a connection begins."""
    payload = b"".join(struct.pack(">HI", name, value) for name, value in settings)
    return PREFACE + frame(SETTINGS, 0, 0, payload)


def block(
    path: str, method: str = "GET", more: Iterable[tuple[str, str]] = (), huffman: bool = True
) -> bytes:
    """Returns a block of headers without the dynamic table, so that it may be sent repeatedly."""
    fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "soak")]
    encoder = hpack.Encoder()
    never_indexed = [hpack.NeverIndexedHeaderTuple(*each) for each in [*fields, *more]]
    return bytes(encoder.encode(never_indexed, huffman=huffman))


def request(stream: int, fields: bytes, body: bytes | None = None) -> bytes:
    if body is None:
        return frame(HEADERS, END_HEADERS | END_STREAM, stream, fields)
    return frame(HEADERS, END_HEADERS, stream, fields) + frame(DATA, END_STREAM, stream, body)


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


def goaway_code(received: bytes) -> int | None:
    """Returns the error of the last GOAWAY among the bytes that a server sent."""
    code = None
    while len(received) >= 9:
        size = int.from_bytes(received[:3], "big")
        if received[3] == GOAWAY and len(received) >= 17:
            code = int.from_bytes(received[13:17], "big")
        received = received[9 + size :]
    return code
