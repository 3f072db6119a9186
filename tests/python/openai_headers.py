"""The header fields that clients of OpenAI read, for tests of middleware and of the service."""

from __future__ import annotations

from typing import Any

OPENAI = "x-ratelimit-"

# The first answer under 60 requests a minute and 90,000 tokens in 10 minutes.
BOTH = {
    "limit-requests": "60",
    "remaining-requests": "59",
    "reset-requests": "1m0s",
    "limit-tokens": "90000",
    "remaining-tokens": "89999",
    "reset-tokens": "10m0s",
}


def openai(headers: Any) -> dict[str, str]:
    """The fields of the family, without their common beginning."""
    found = {name.lower(): value for name, value in dict(headers).items()}
    return {
        name[len(OPENAI) :]: value
        for name, value in found.items()
        if name.startswith(OPENAI) and name.endswith(("-requests", "-tokens"))
    }
