"""A check service without a network, and functions that call it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import tidegate as tg
from tidegate.rules import RuleSet

if not sys.platform.startswith("linux"):
    pytest.skip("the service is for Linux", allow_module_level=True)

import check_wire as wire
from service_testing import call
from tidegate.server import _native

JSON = [("content-type", "application/json")]
GRPC = "/tidegate.v1.RateLimiter/"

OK, INVALID_ARGUMENT, PERMISSION_DENIED, UNIMPLEMENTED, UNAVAILABLE = 0, 3, 7, 12, 14
UNAUTHENTICATED = 16


def rules_of_tiers(*rules: Any, **more: Any) -> dict[str, Any]:
    """A document of rules for the tiers free, which is the default one, and premium."""
    return {
        "tiers": ["free", "premium"],
        "default_tier": "free",
        "rules": list(rules),
        **more,
    }


def api_rule(**limits: Any) -> dict[str, Any]:
    """The rule of the API, with a limit for each tier."""
    return {"id": "api", "by": "user", "endpoint": "/api/**", "limits": limits}


API = rules_of_tiers(api_rule(free="2/minute", premium="5/minute"))


class Service:
    """A CheckService on a clock that stands still, with its limiter."""

    def __init__(
        self,
        document: Any = API,
        *,
        storage: str = "memory://",
        clock: Any = "manual",
        recorder: Any = None,
        require_token: bool = False,
        **options: Any,
    ) -> None:
        self.clock = tg.ManualClock(1_700_000_000_500_000_000) if clock == "manual" else clock
        self.limiter: Any = tg.Limiter(rules=RuleSet(document), storage=storage, clock=self.clock)
        self.native = _native.CheckService(
            self.limiter._native(), recorder=recorder, require_token=require_token, **options
        )

    def use(self, document: Any) -> None:
        self.limiter.use(RuleSet(document))
        self.native.use(self.limiter._native())

    def http(
        self, method: str, target: str, headers: Any = (), body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        status, answered, content = call(self.native, method, target, list(headers), body)
        return status, dict(answered), content

    def check(self, body: Any, headers: Any = JSON) -> tuple[int, dict[str, str], Any]:
        """Sends POST /v1/ratelimit/check with a body, or with a value that is encoded as one."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answered, content = self.http("POST", "/v1/ratelimit/check", headers, raw)
        return status, answered, json.loads(content)

    def status(self, user: str, query: str = "", headers: Any = ()) -> tuple[int, Any]:
        target = f"/v1/ratelimit/status/{user}" + (f"?{query}" if query else "")
        status, _, content = self.http("GET", target, headers)
        return status, json.loads(content)

    def grpc(self, method: str, message: bytes, headers: Any = ()) -> tuple[int, str, bytes]:
        return call(self.native, "POST", GRPC + method, list(headers), message, grpc=True)

    def ask(self, method: str = "Check", **asked: Any) -> wire.CheckResponse:
        """Returns the answer to a call of gRPC that must succeed."""
        code, said, content = self.grpc(method, wire.request(**asked))
        assert code == OK, said
        return wire.CheckResponse(content)
