"""What the routes of the admin API share, and how a route says who may ask it."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Annotated, Any, Callable, Optional

from fastapi import Depends, Request
from fastapi.routing import APIRoute

from tidegate._database.api_tokens import ROLES
from tidegate._database.audit import Actor
from tidegate._database.sql_rules import SqlRules
from tidegate._service.admin.authentication import ACTOR
from tidegate._service.admin.problems import ProblemError
from tidegate._service.recording import caller_named

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.responses import Response

    from tidegate._rule_limiter import RuleLimiter
    from tidegate._rules.rule_set import RuleSet
    from tidegate._rules.source import RuleSource
    from tidegate._service.admin.database import AdminDatabase
    from tidegate._service.enforcement import Enforcement, Penalty

__all__ = ["Admin", "AdminRoute", "AnActor", "TheAdmin", "check_if_match", "role"]

log = logging.getLogger("tidegate")

_ROLE = "x-tidegate-role"


class Admin:
    """What the routes work on."""

    def __init__(
        self,
        database: AdminDatabase,
        *,
        rules: Optional[RuleSource],
        limiter: Optional[RuleLimiter],
        tiers: Any,
        on_change: Optional[Callable[[str, Optional[str]], object]],
        settings: Optional[dict[str, Any]] = None,
        now: Callable[[], dt.datetime],
        enforcement: Optional[Enforcement] = None,
    ) -> None:
        self.database = database
        self.enforcement = enforcement
        self.rules = rules
        self.tiers = tiers
        self.settings = settings
        self.now = now
        self._limiter = limiter
        self._on_change = on_change

    @property
    def limiter(self) -> RuleLimiter:
        """Raises ProblemError where the service has none."""
        if self._limiter is None:
            raise ProblemError(503, "this process has no limiter; expected one that answers checks")
        return self._limiter

    def penalty_of(self, attributes: dict[str, str]) -> Optional[Penalty]:
        """What is enforced against the caller of a request with these attributes."""
        if self.enforcement is None:
            return None
        return self.enforcement.find(caller_named(attributes))

    def enforced_against(self, attributes: dict[str, str]) -> Optional[Penalty]:
        """As penalty_of(), but nothing where a list of the rules allows such a request."""
        penalty = self.penalty_of(attributes)
        if penalty is None:
            return None
        asked: dict[str, Any] = attributes
        is_listed = self.limiter.explain(**asked).cost == 0
        return None if is_listed and self.limiter.peek(**asked).allowed else penalty

    @property
    def foreign_rules(self) -> Optional[RuleSet]:
        """The rules in force, where they are not those of the database."""
        is_foreign = self.rules is not None and not isinstance(self.rules, SqlRules)
        return self.rules.current if is_foreign and self.rules is not None else None

    def check_own_rules(self) -> None:
        """Raises ProblemError where the rules in force are not those of the database."""
        if self.foreign_rules is not None:
            raise ProblemError(
                409, f"the rules come from {self.rules!r:.200}; expected them to be handled there"
            )

    def rules_changed(self) -> None:
        """After a change of rules was committed: has this process see it at once."""
        if self.rules is not None:
            self.rules.refresh()
        self._tell("rules", None)

    def tier_changed(self, user: Optional[str]) -> None:
        """After the tier of a user, or of many, was committed."""
        if self.tiers is not None:
            self.tiers.forget(user)
        self._tell("tiers", user)

    def tokens_changed(self) -> None:
        """After a token was made or revoked."""
        self._tell("tokens", None)

    def _tell(self, what: str, key: Optional[str]) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(what, key)
        except Exception:
            # The change is committed, so the request has succeeded.
            log.exception("admin: on_change failed after a change of %s", what)


def role(name: str) -> dict[str, Any]:
    """Of a route: the least role that may ask it."""
    return {_ROLE: name}


class AdminRoute(APIRoute):
    """A route that looks at the role before the body. One without a role cannot be made."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        needed: str = (self.openapi_extra or {})[_ROLE]
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            actor: Actor = request.scope[ACTOR]
            if ROLES.index(actor.role) < ROLES.index(needed):
                raise ProblemError(403, f"the token's role is {actor.role}; expected {needed}")
            return await handler(request)

        return guarded


def _admin_of(request: Request) -> Admin:
    admin: Admin = request.app.state.admin
    return admin


def _actor_of(request: Request) -> Actor:
    actor: Actor = request.scope[ACTOR]
    return actor


TheAdmin = Annotated[Admin, Depends(_admin_of)]
AnActor = Annotated[Actor, Depends(_actor_of)]


def check_if_match(given: Optional[str], current: str, *, is_required: bool) -> None:
    """Raises ProblemError unless what the client has seen is what is there now."""
    if given is None:
        if is_required:
            raise ProblemError(
                428, "the header If-Match is missing; expected the ETag that was read before"
            )
        return
    tags = [tag.strip() for tag in given.split(",")]
    if "*" not in tags and f'"{current}"' not in tags:
        raise ProblemError(
            412,
            f"If-Match is {given!a:.80}, but now it is {current!r}; expected a look at what "
            "somebody else changed",
            headers={"ETag": f'"{current}"'},
        )
