"""Writes and reads messages of tidegate.v1, without sharing code with the service."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Union

Bytes = Union[str, bytes]


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: Bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def request(
    attributes: Mapping[str, Bytes] | None = None,
    *,
    cost: int = 0,
    with_outcomes: bool = False,
    decision: bytes = b"",
    rules: Sequence[str] = (),
) -> bytes:
    """Writes a CheckRequest; with a decision a RefundRequest; with only attributes any request.

    With rules, writes a ResetRequest.
    """
    body = b"".join(
        text(1, text(1, name) + text(2, value)) for name, value in (attributes or {}).items()
    )
    if cost:
        body += number(2, cost)
    if with_outcomes:
        body += number(3, 1)
    if decision:
        body += text(3, decision)
    return body + b"".join(text(2, id) for id in rules)


def fields(message: bytes) -> dict[int, list[Any]]:
    """Returns the values of each field, in their order: ints and bytes."""
    found: dict[int, list[Any]] = {}
    at = 0

    def read() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = read()
        kind = tag & 7
        value: Any
        if kind == 0:
            value = read()
        elif kind == 2:
            size = read()
            value = message[at : at + size]
            assert len(value) == size
            at += size
        else:
            assert kind in (1, 5)
            size = 8 if kind == 1 else 4
            (value,) = struct.unpack("<q" if kind == 1 else "<i", message[at : at + size])
            at += size
        found.setdefault(tag >> 3, []).append(value)
    return found


def ns(duration: bytes) -> int:
    """Reads a google.protobuf.Duration or Timestamp."""
    parts = fields(duration)
    return int(parts.get(1, [0])[0]) * 10**9 + int(parts.get(2, [0])[0])


class CheckResponse:
    """Reads a CheckResponse, or the message that has an Outcome."""

    def __init__(self, message: bytes) -> None:
        found = fields(message)

        def one(field: int, default: Any = None) -> Any:
            return found.get(field, [default])[0]

        self.allowed = bool(one(1, 0))
        self.limit = one(2)
        self.remaining = one(3)
        self.retry_after_ns = ns(one(4)) if 4 in found else None
        self.reset_after_ns = ns(one(5)) if 5 in found else None
        self.reset_time_ns = ns(one(6)) if 6 in found else None
        self.delay_ns = ns(one(7)) if 7 in found else 0
        self.rule = one(8, b"").decode()
        self.degraded = bool(one(9, 0))
        self.outcomes = [Outcome(outcome) for outcome in found.get(10, [])]
        self.decision = one(11, b"")


class Outcome:
    def __init__(self, message: bytes) -> None:
        found = fields(message)
        self.name = found[1][0].decode()
        self.rule = found.get(2, [b""])[0].decode()
        self.allowed = bool(found.get(3, [0])[0])
        self.shadow = bool(found.get(4, [0])[0])
        self.limit = found.get(5, [0])[0]
        self.remaining = found.get(6, [0])[0]
