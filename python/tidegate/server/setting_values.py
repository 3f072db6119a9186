"""The values of settings that are more than a text or a number."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tidegate.rules.model import NAME

__all__ = ["Address", "AuthHeaders", "Caller", "Host", "url_of"]

_HEADER = "[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # a token of RFC 9110
_PORT = Annotated[int, Field(ge=0, le=65535)]


class Address(BaseModel):
    """A host and a port, written ``127.0.0.1:8080`` or ``[::1]:8080``. Port 0 means a free port."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str
    port: _PORT

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, (dict, Address)):
            return value
        host, colon, port = str(value).rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(
                f"the address is {value!r:.80}; expected HOST:PORT, such as 127.0.0.1:8080, with a "
                "port from 0 to 65535"
            )
        return {"host": host, "port": int(port)}

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _expect_host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", value):
        raise ValueError(f"is {value!r:.80}; expected a name such as tidegate.example.com")
    return value.lower()


Host = Annotated[str, AfterValidator(_expect_host)]


def _expect_caller(value: str) -> str:
    kind, colon, name = value.partition(":")
    if kind not in ("user", "ip") or not colon or not name:
        raise ValueError(f"is {value!r:.80}; expected user:NAME or ip:ADDRESS, such as user:42")
    return value


Caller = Annotated[str, AfterValidator(_expect_caller)]


def _expect_headers(value: dict[str, str]) -> dict[str, str]:
    known: dict[str, str] = {}
    for header, attribute in value.items():
        if not re.fullmatch(_HEADER, header):
            raise ValueError(
                f"has the header {header!r:.80}; expected the name of a header, such as X-User"
            )
        other = known.setdefault(header.lower(), header)
        if other != header:
            raise ValueError(f"has the header {header!r:.80} as {other!r:.80} too; expected one")
        if not re.fullmatch(NAME, attribute):
            raise ValueError(
                f"has the attribute {attribute!r:.80} of {header}; expected a name such as user"
            )
    return value


AuthHeaders = Annotated[dict[str, str], AfterValidator(_expect_headers)]


def url_of(signal: str) -> AfterValidator:
    def expect(value: str) -> str:
        if not re.match("https?://[^/]", value):
            raise ValueError(
                f"is {value!r:.80}; expected a URL such as http://localhost:4318/v1/{signal}"
            )
        return value

    return AfterValidator(expect)
