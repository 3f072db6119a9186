"""The texts by which processes name a reservation to each other.

A token holds the reservation's id, which nobody can guess, for which limits and keys it was made,
and what it has charged. It gives no units by itself: the storage has a record of each reservation
that is open, under the id and the key, and takes the units from there. The checksum finds tokens
that were cut or altered by mistake.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["decode", "encode", "identity"]

_START = "tgr1."
_HEAD = struct.Struct(">16s8sqHH")  # id, limiter, instant, number of parts, number of keys
_PART = struct.Struct(">qq")
_SUM_BYTES = 6
_LONGEST = 1 << 20
_MOST = (1 << 53) - 1


def identity(kind: str, names: Iterable[str]) -> bytes:
    """What a token says of its limiter: equal for limiters that have the same counts."""
    text = "\0".join([kind, *names]).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).digest()


def encode(
    limiter: bytes,
    ident: bytes,
    admitted_ns: int,
    parts: tuple[tuple[int, int], ...],
    whose: Sequence[str | bytes],
) -> str:
    """The token of a reservation of these keys."""
    keys = [_bytes_of(key) for key in whose]
    packed = _HEAD.pack(ident, limiter, admitted_ns, len(parts), len(keys))
    packed += b"".join(_PART.pack(*part) for part in parts)
    packed += b"".join(struct.pack(">I", len(key)) + key for key in keys)
    return _START + base64.urlsafe_b64encode(packed + _sum(packed)).decode().rstrip("=")


def decode(
    limiter: bytes, token: str | bytes
) -> tuple[bytes, int, tuple[tuple[int, int], ...], list[bytes]]:
    """The id, the instant, the parts and the keys of a token.

    Raises ConfigurationError for a text that is no token, and for a token of another limiter.
    """
    if not isinstance(token, (str, bytes)):
        raise ArgumentTypeError(
            f"the token is {token!r:.80} of type {type(token).__name__}; expected the str of a "
            "reservation"
        )
    text = token.decode("latin-1") if isinstance(token, bytes) else token
    invalid = ConfigurationError(f"the token is {text!r:.80}; expected that of a reservation")
    if not text.startswith(_START) or len(text) > _LONGEST:
        raise invalid
    body = text[len(_START) :]
    try:
        packed = base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise invalid from None
    packed, total = packed[:-_SUM_BYTES], packed[-_SUM_BYTES:]
    if len(packed) < _HEAD.size or _sum(packed) != total:
        raise invalid
    ident, of, admitted_ns, part_count, key_count = _HEAD.unpack_from(packed)
    if of != limiter:
        raise ConfigurationError(
            "the token is of a reservation by other limits; expected one of this limiter, with the "
            "same limits, prefix and storage"
        )
    parts = []
    keys = []
    try:
        at = _HEAD.size
        for _ in range(part_count):
            parts.append(_PART.unpack_from(packed, at))
            at += _PART.size
        for _ in range(key_count):
            (size,) = struct.unpack_from(">I", packed, at)
            keys.append(packed[at + 4 : at + 4 + size])
            at += 4 + size
    except struct.error:
        raise invalid from None
    if at != len(packed) or any(not -1 <= units <= _MOST or until < 0 for units, until in parts):
        raise invalid
    return ident, admitted_ns, tuple(parts), keys


def _sum(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=_SUM_BYTES, key=b"tidegate").digest()


def _bytes_of(key: str | bytes) -> bytes:
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else bytes(key)
