"""Models of the requests and answers of the admin API."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal, Optional, Union

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from tidegate.rules.model import NAME
from tidegate.server.records.api_tokens import NAME as TOKEN_NAME

__all__ = [
    "Asked",
    "AuditEntry",
    "AuditPage",
    "ChangedRules",
    "CustomLimit",
    "Decided",
    "Differences",
    "EndpointLimit",
    "Enforced",
    "Entries",
    "Explained",
    "Instant",
    "Invalidation",
    "NewRules",
    "NewToken",
    "NewTopUp",
    "Note",
    "Problem",
    "Quota",
    "QuotasOfUser",
    "ResetAsked",
    "ResetRules",
    "RuleList",
    "StoredOverride",
    "Token",
    "TokenText",
    "TopUp",
    "UnitsBefore",
    "Unlock",
    "UpgradeRequest",
    "User",
    "UserTier",
    "Validity",
    "Version",
    "VersionDocument",
    "WhoAmI",
]


def _no_number(value: Any) -> Any:
    """Refuses numbers: seconds since 1970 are easily confused with milliseconds."""
    if isinstance(value, dt.datetime) or (isinstance(value, str) and "T" in value.upper()):
        return value
    raise ValueError("expected a time with its zone, such as 2030-01-31T12:00:00Z")


def _in_utc(value: dt.datetime) -> dt.datetime:
    """Refuses times whose year in UTC, which the database stores, does not have four digits."""
    try:
        return value.astimezone(dt.timezone.utc)
    except OverflowError:
        raise ValueError("expected a time in the years 1 to 9999, in UTC too") from None


Instant = Annotated[AwareDatetime, BeforeValidator(_no_number), AfterValidator(_in_utc)]
AttributeName = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
Tier = Annotated[str, StringConstraints(min_length=1, max_length=50)]
UserId = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Role = Literal["viewer", "check", "operator", "admin"]
Status = Literal["PENDING", "APPROVED", "REJECTED", "WITHDRAWN"]
_Text = Annotated[str, StringConstraints(max_length=2000)]
_RULE: dict[str, Any] = {
    "id": "api",
    "by": "user",
    "endpoints": ["/api/*"],
    "limits": {"premium": "1000/minute"},
}


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [fields]})


class Problem(BaseModel):
    """A problem with a request (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    problems: Optional[list[dict[str, Any]]] = None


class EndpointLimit(BaseModel):
    """The limit of one endpoint, in numbers."""

    model_config = _example(endpoint="/api/*", limit=1000, window=60)

    endpoint: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    limit: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]
    window: Annotated[int, Field(ge=1, le=2**31 - 1, strict=True, description="In seconds.")]
    burst: Annotated[Optional[int], Field(ge=1, le=2**31 - 1, strict=True)] = None


class NewRules(BaseModel):
    """Rules to add, each a rule of a document (docs/rules.md) or an EndpointLimit.

    An EndpointLimit sets the limit of `tier` at the endpoint. It is kept in the rule
    `endpoint:ENDPOINT`, which is created if it does not exist. If `tier` is given, the limits of
    the other rules apply to that tier alone.
    """

    model_config = _example(
        tier="premium", rules=[{"endpoint": "/api/*", "limit": 1000, "window": 60}]
    )

    tier: Optional[Tier] = None
    rules: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]


class RuleList(BaseModel):
    """Rules in force, each as in a document, with an `etag` of its own; and likely mistakes."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"etag": "5d41", "rules": [{**_RULE, "etag": "8f14"}]}]}
    )

    etag: str
    rules: list[dict[str, Any]]
    advice: list[dict[str, Any]] = []


class Entries(BaseModel):
    """The entries of a list, or all costs, each as in a document."""

    etag: str
    entries: list[dict[str, Any]]


class ChangedRules(BaseModel):
    """The result of a change of rules."""

    created: list[str] = []
    updated: list[str] = []
    deleted: list[str] = []
    changes: list[str] = Field(default=[], description="What changed, in lines.")
    version: int
    etag: str


class Validity(BaseModel):
    """Whether a document is accepted; if not, every problem with it, else its likely mistakes."""

    valid: bool
    rules: Optional[int] = None
    problems: list[dict[str, Any]] = []
    advice: list[dict[str, Any]] = []


class Differences(BaseModel):
    """The changes that a document would make to the rules in force."""

    same: bool
    changes: list[str]
    etag: str


class Version(BaseModel):
    """A document of rules that was put into force."""

    id: int
    created_at: dt.datetime
    actor: str
    comment: Optional[str]
    digest: str
    in_force: bool


class VersionDocument(Version):
    """A version with its document."""

    document: dict[str, Any]


class CustomLimit(BaseModel):
    """A limit that one user has instead of the tier's."""

    model_config = ConfigDict(extra="forbid")

    limits: Union[_Text, list[_Text]]
    until: Optional[Instant] = None
    reason: _Text = ""
    algorithm: Optional[str] = None


class UserTier(BaseModel):
    """The tier of a user, and the user's own limits by rule."""

    model_config = _example(tier="premium", custom_limits={"api": "5000/minute"})

    tier: Tier
    custom_limits: Optional[dict[str, Union[_Text, CustomLimit]]] = Field(
        default=None, description="Stays unchanged if it is left out; null removes all of them."
    )


class User(BaseModel):
    """A user who has a tier or limits of the user's own."""

    user_id: str
    tier: str
    custom_limits: Any = None
    created_at: Optional[dt.datetime]
    updated_at: Optional[dt.datetime]


class StoredOverride(BaseModel):
    """Other limits for one key of a rule."""

    id: int
    rule: str
    key: Any
    limits: str
    algorithm: Optional[str]
    begin: Optional[dt.datetime] = Field(alias="from")
    until: Optional[dt.datetime]
    reason: Optional[str]


class UpgradeRequest(BaseModel):
    """A user's request for another tier."""

    id: int
    user_id: str
    current_tier: Optional[str]
    requested_tier: str
    reason: Optional[str]
    status: str
    created_at: Optional[dt.datetime]
    decided_at: Optional[dt.datetime]
    decided_by: Optional[str]
    note: Optional[str]


class Note(BaseModel):
    """The reason for a decision on a request for another tier."""

    model_config = _example(note="agreed with sales")

    note: Optional[_Text] = None


class Decided(BaseModel):
    """A request for another tier that was approved or rejected."""

    id: int
    status: Status
    user_id: str
    tier: Optional[str]


class Asked(BaseModel):
    """The attributes of a request, as check() takes them, and its cost."""

    model_config = _example(attributes={"user": "42", "endpoint": "/api/posts"}, cost=1)

    attributes: Annotated[dict[AttributeName, str], Field(min_length=1, max_length=50)]
    cost: Annotated[int, Field(ge=1, le=2**53 - 1, strict=True)] = 1


class ResetAsked(BaseModel):
    """The attributes of a request, as check() takes them, whose usage is forgotten."""

    model_config = _example(attributes={"user": "42", "endpoint": "/api/posts"})

    attributes: Annotated[dict[AttributeName, str], Field(min_length=1, max_length=50)]
    everything: bool = Field(
        default=False,
        description="Deletes top-ups and carried units of quotas too, which stay otherwise.",
    )
    rules: Optional[list[str]] = Field(
        default=None,
        max_length=100,
        description="The ids of the rules to reset, shared counts too; else those whose counts the "
        "caller shares with no others.",
    )


class Enforced(BaseModel):
    """A caller who is throttled or blocked because of an anomaly."""

    caller: str
    action: str
    reason: str
    left: float = Field(description="Seconds until the penalty ends.")


class Unlock(BaseModel):
    """The caller to unlock, named as in records of decisions."""

    model_config = _example(caller="user:42")

    caller: Annotated[str, StringConstraints(min_length=1, max_length=300)]


class Explained(BaseModel):
    """The rules that apply to a request, the reason for each, and what remains of their limits."""

    allowed: bool
    rule: Optional[str]
    retry_after: Optional[float] = Field(description="In seconds; null if it never passes.")
    degraded: bool
    cost: int
    priority: str
    rules: list[dict[str, Any]]
    enforced: Optional[Enforced] = Field(
        default=None,
        description="The caller's penalty for an anomaly; null if a list allows the request.",
    )


class UnitsBefore(BaseModel):
    """What a key had of a quota before it was reset."""

    used: int
    base: int
    carried: int
    topped_up: int
    available: int


class ResetRules(BaseModel):
    """The rules and keys whose usage was forgotten, and what the keys had of quotas before."""

    reset: list[dict[str, Optional[str]]]
    quotas: dict[str, UnitsBefore]


class Invalidation(BaseModel):
    """What to look up again: rules, the tiers of users, or remembered refusals."""

    model_config = _example(what="tiers", user="42")

    what: Literal["rules", "tiers", "refusals"]
    user: Optional[UserId] = Field(default=None, description="With `tiers`: only this user's.")


class QuotaGrant(BaseModel):
    """Units that a user got at once."""

    kind: Literal["carried", "base", "top-up"]
    units: int
    left: int
    expires_at: Optional[dt.datetime]
    priority: int


class Quota(BaseModel):
    """A quota of a rule, and what a user has of it now."""

    rule: str
    name: str
    limit: int
    base: int
    carried: int
    topped_up: int
    used: int
    available: int
    resets_at: dt.datetime
    grants: list[QuotaGrant]


class TopUp(BaseModel):
    """Units that a user got in addition to those of the period."""

    id: int
    user_id: str
    quota: str
    units: int
    expires_at: Optional[dt.datetime]
    priority: int
    reason: Optional[str]
    created_at: dt.datetime


class QuotasOfUser(BaseModel):
    """The state of all quotas of a user, and the latest top-ups."""

    user: str
    tier: Optional[str]
    quotas: list[Quota]
    top_ups: list[TopUp]


class NewTopUp(BaseModel):
    """Units to give to a user. `quota` is needed if several quotas count the user."""

    model_config = _example(
        user="42", units=1000, expires_at="2100-01-31T00:00:00Z", reason="launch"
    )

    user: UserId
    units: Annotated[int, Field(ge=1, le=2**52, strict=True)]
    quota: Optional[Annotated[str, StringConstraints(min_length=1, max_length=300)]] = None
    expires_at: Optional[Instant] = None
    priority: Annotated[int, Field(ge=-100, le=100, strict=True)] = 0
    reason: Optional[_Text] = None


class NewToken(BaseModel):
    """A token to make."""

    model_config = _example(name="ci", role="viewer", expires_at="2100-01-31T12:00:00Z")

    # create_token() checks it, with a message that says what is expected.
    name: Annotated[str, Field(json_schema_extra={"pattern": f"^{TOKEN_NAME}$"})]
    role: Role
    expires_at: Optional[Instant] = None


class Token(BaseModel):
    """A token without its text."""

    id: int
    name: str
    role: str
    created_at: dt.datetime
    expires_at: Optional[dt.datetime]
    last_used_at: Optional[dt.datetime]
    revoked_at: Optional[dt.datetime]


class TokenText(BaseModel):
    """A new token. Its text is shown only once."""

    id: int
    token: str


class AuditEntry(BaseModel):
    """One change."""

    id: int
    time: dt.datetime
    actor: str
    role: str
    action: str
    target: str
    before: Any = None
    after: Any = None
    remote: Optional[str]


class AuditPage(BaseModel):
    """Changes, the newest first. `next` is the `before` of the next page."""

    entries: list[AuditEntry]
    next: Optional[int]


class WhoAmI(BaseModel):
    """The owner of the token that came with the request."""

    name: str
    role: str
