"""The state that the routes of the admin API share, and the role that each route needs."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Callable, Optional, TypeVar

from fastapi import Depends, Header, Query, Request
from fastapi.routing import APIRoute
from pydantic import StringConstraints

from tidegate.rules.sql.sql_rules import SqlRules
from tidegate.rules.sql.stored_rules import StoredRules, commits_of_others
from tidegate.server.admin.authentication import ACTOR
from tidegate.server.admin.problems import ProblemError
from tidegate.server.recording import caller_named
from tidegate.server.records import users
from tidegate.server.records.api_tokens import ROLES
from tidegate.server.records.audit import Actor

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    import sqlalchemy as sa
    from starlette.responses import Response

    from tidegate.limiter.rule_limiter import RuleLimiter
    from tidegate.rules.rule_set import RuleSet
    from tidegate.rules.source import RuleSource
    from tidegate.server.admin.database import AdminDatabase, Change
    from tidegate.server.enforcement import Enforcement, Penalty

__all__ = [
    "AChange",
    "Admin",
    "AdminRoute",
    "AnActor",
    "Comment",
    "RequestedChange",
    "TheAdmin",
    "role",
]

log = logging.getLogger("tidegate")

_ROLE = "x-tidegate-role"
Changed = TypeVar("Changed")


@dataclass(eq=False)
class Admin:
    """The state that the routes work on."""

    database: AdminDatabase
    rules: Optional[RuleSource]
    limiter_or_none: Optional[RuleLimiter]
    tiers: Any
    on_change: Optional[Callable[[str, Optional[str]], object]]
    now: Callable[[], dt.datetime]
    settings: Optional[dict[str, Any]] = None
    enforcement: Optional[Enforcement] = None
    tier_seen: Callable[[str], Optional[str]] = lambda user: None
    # The rules of the last change, where no source has them.
    _known: Optional[RuleSet] = field(default=None, init=False)

    @property
    def limiter(self) -> RuleLimiter:
        """Returns the limiter. Raises ProblemError if the service has none."""
        if self.limiter_or_none is None:
            raise ProblemError(503, "this process has no limiter; expected one that answers checks")
        return self.limiter_or_none

    def tier_of(self, connection: sa.Connection, user: str) -> Optional[str]:
        """Returns the tier that the database has for a user, or that the last check came with."""
        row = users.user_of(connection, user)
        return self.tier_seen(user) if row is None else str(row.tier)

    def penalty_of(self, attributes: dict[str, str]) -> Optional[Penalty]:
        """Returns the penalty of the caller of a request with these attributes, if there is one."""
        if self.enforcement is None:
            return None
        return self.enforcement.find(caller_named(attributes))

    def enforced_against(self, attributes: dict[str, str]) -> Optional[Penalty]:
        """Like penalty_of(), but returns None if a list of the rules allows such a request."""
        penalty = self.penalty_of(attributes)
        if penalty is None:
            return None
        asked: dict[str, Any] = attributes
        is_listed = self.limiter.explain(**asked).cost == 0
        return None if is_listed and self.limiter.peek(**asked).allowed else penalty

    @property
    def foreign_rules(self) -> Optional[RuleSet]:
        """The rules in force, unless they come from the database."""
        is_foreign = self.rules is not None and not isinstance(self.rules, SqlRules)
        return self.rules.current if is_foreign and self.rules is not None else None

    def check_own_rules(self) -> None:
        """Raises ProblemError unless the rules in force come from the database."""
        if self.foreign_rules is not None:
            raise ProblemError(
                409,
                f"the rules come from {self.rules!r:.200} and not from the database; expected them "
                "to be read and changed there",
            )

    def change_rules(
        self, actor: Actor, propose: Callable[[StoredRules], Callable[[Change], Changed]]
    ) -> Changed:
        """Changes the rules, and follows the change. Returns what its write returns.

        `propose` is called with the rules of the tables and returns what writes the change. Both
        happen before the database is locked, and once more if somebody else changes the rules
        until then. Raises what `propose` raises, ProblemError unless the rules in force come from
        the database, and RulesError if those of the tables are not accepted.
        """
        name = self.database.name
        seen: list[Any] = []

        def look(connection: sa.Connection) -> None:
            commits = commits_of_others(connection)
            stored = StoredRules.current(connection, name, self._in_hand())
            seen[:] = commits, stored, propose(stored)

        with self.any_change_of_rules(actor, look) as change:
            commits, stored, write = seen
            now = commits_of_others(change.connection)
            is_same = now is not None and now == commits
            if not (is_same or stored.are_still_in(change.connection)):
                write = propose(StoredRules.current(change.connection, name, change.known))
            changed: Changed = write(change)
        return changed

    @contextlib.contextmanager
    def any_change_of_rules(
        self, actor: Actor, look: Optional[Callable[[sa.Connection], object]] = None
    ) -> Iterator[Change]:
        """Opens a change of rules, and follows it, even if those of the tables are not accepted.

        `look` is that of AdminDatabase.change().
        """
        self.check_own_rules()
        known = self._in_hand()
        with self.database.change(actor, of_rules=True, known=known, look=look) as change:
            yield change
        self.rules_changed(change)

    def _in_hand(self) -> Optional[RuleSet]:
        """Returns the rules of this process, which may be those of the tables."""
        known = self._known
        if isinstance(self.rules, SqlRules):
            current = self.rules.current
            # The ETag of the set that was written is known, that of one that was read is not.
            known = known if known is not None and known.digest == current.digest else current
        return known

    def rules_changed(self, change: Optional[Change] = None) -> None:
        """Makes this process follow a change of rules that was committed."""
        adopted = None if change is None else change.adopted
        if adopted is not None:
            self._known = adopted[0]
        if isinstance(self.rules, SqlRules) and adopted is not None:
            self.rules.adopt(*adopted)
        elif self.rules is not None:
            self.rules.refresh()
        self._notify("rules", None)

    def tier_changed(self, user: Optional[str]) -> None:
        """Makes this process follow a change of the tier of one user, or of many."""
        if self.tiers is not None:
            self.tiers.forget(user)
        self._notify("tiers", user)

    def tokens_changed(self) -> None:
        """Reports that a token was made or revoked."""
        self._notify("tokens", None)

    def _notify(self, what: str, key: Optional[str]) -> None:
        if self.on_change is None:
            return
        try:
            self.on_change(what, key)
        except Exception:
            # The change is committed, so the request has succeeded.
            log.exception("admin: on_change failed after a change of %s", what)


def role(name: str) -> dict[str, Any]:
    """Returns the extra fields of a route that only `name` and higher roles may call."""
    return {_ROLE: name}


class AdminRoute(APIRoute):
    """A route that checks the role before it reads the body. Every route must name a role."""

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
Comment = Annotated[
    Optional[Annotated[str, StringConstraints(max_length=500)]],
    Query(description="The reason, for the history."),
]


@dataclass(frozen=True)
class RequestedChange:
    """A requested change of rules: its author, their reason, and the ETag that they have read."""

    admin: Admin
    actor: Actor
    if_match: Optional[str]
    comment: Optional[str]

    def check_read(self, current: str, *, is_required: bool) -> None:
        """Raises ProblemError unless the client has read what is in force now."""
        if self.if_match is None:
            if is_required:
                raise ProblemError(
                    428, "the header If-Match is missing; expected the ETag that was read before"
                )
            return
        # As the header ETag has it, or as the answer's JSON has it.
        tags = [tag.strip() for tag in self.if_match.split(",")]
        if not {"*", f'"{current}"', current} & set(tags):
            raise ProblemError(
                412,
                f"If-Match is {self.if_match!a:.80}, but the ETag now is {current!r}; expected a "
                "new read, as somebody else has made a change",
                headers={"ETag": f'"{current}"'},
            )

    def make(self, propose: Callable[[StoredRules], Callable[[Change], Changed]]) -> Changed:
        """Makes the change, as Admin.change_rules() does."""
        return self.admin.change_rules(self.actor, propose)


def _change_of(
    admin: TheAdmin,
    actor: AnActor,
    if_match: Annotated[
        Optional[str], Header(description="The ETag that was read before, or `*`.")
    ] = None,
    comment: Comment = None,
) -> RequestedChange:
    return RequestedChange(admin, actor, if_match, comment)


AChange = Annotated[RequestedChange, Depends(_change_of)]
