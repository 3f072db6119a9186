"""The fields of a document of rules."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from typing import Annotated, Any, Literal, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    WithJsonSchema,
    model_validator,
)

from tidegate._rules.pauses import pause_at_times
from tidegate.types import Algorithm

__all__ = [
    "Cost",
    "Default",
    "ListEntry",
    "Override",
    "Reserve",
    "Rule",
    "Rules",
    "as_list",
]

UNLIMITED = "unlimited"
NAME = "[A-Za-z_][A-Za-z0-9_]{0,63}"
_ID = "[!-~]{1,100}"
_METHOD = "[A-Za-z-]{1,20}"
# Keywords of check() that are no attributes.
RESERVED = frozenset({"cost", "decision", "self"})


def as_list(value: Any) -> Any:
    """One text as a list of it."""
    return [value] if isinstance(value, str) else value


def _as_names(value: Any) -> Any:
    """``user+endpoint`` as the list of its names; ``global`` as the list of none."""
    if value == "global":
        return []
    return [name.strip() for name in value.split("+")] if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    """A number or a truth value of a document, as the text that a request would have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else value


def _as_time(value: Any) -> Any:
    """A time or a day, of what YAML and TOML have types for and JSON has texts for."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return dt.date.fromisoformat(value)
        with contextlib.suppress(ValueError):
            return dt.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value))
    if isinstance(value, dt.date):  # which a datetime is too
        return value
    raise ValueError(
        f"is {value!r:.80}; expected a time such as 2030-01-31T12:00:00Z, or a day such as "
        "2030-01-31"
    )


def _check_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise ValueError(
            f"the attribute is named {name!r}; expected a name such as user or api_key"
        )
    if name in RESERVED:
        raise ValueError(f"no attribute can be named {name!r}; expected another name")
    return name


def _check_id(id: str) -> str:
    if not re.fullmatch(_ID, id):
        raise ValueError(
            f"the id is {id!r}; expected 1 to 100 printable ASCII characters, no space"
        )
    return id


def _check_method(method: str) -> str:
    if not re.fullmatch(_METHOD, method):
        raise ValueError(f"the method is {method!r}; expected one such as GET")
    return method.upper()


def _as_reserve(value: Any) -> Any:
    """The same share for all but critical requests, where it is one."""
    if isinstance(value, (dict, BaseModel)):
        return value
    percentage = _as_percentage(value)
    return {"normal": f"{percentage}%", "background": f"{percentage}%"}


def _as_percentage(value: Any) -> Any:
    """``20%`` as 20."""
    match = re.fullmatch(r"([0-9]{1,3}) ?%", value) if isinstance(value, str) else None
    if match is None or int(match[1]) > 100:
        raise ValueError(f"is {value!r:.80}; expected a share from 0% to 100%, such as 20%")
    return int(match[1])


Name = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "pattern": f"^{NAME}$", "not": {"enum": sorted(RESERVED)}}),
]
Id = Annotated[
    str, AfterValidator(_check_id), WithJsonSchema({"type": "string", "pattern": f"^{_ID}$"})
]
Text = Annotated[
    str,
    BeforeValidator(_as_text),
    WithJsonSchema({"type": ["string", "integer", "boolean"]}),
]
Texts = Annotated[list[str], BeforeValidator(as_list)]
Method = Annotated[
    str,
    AfterValidator(_check_method),
    WithJsonSchema({"type": "string", "pattern": f"^{_METHOD}$"}),
]
Methods = Annotated[list[Method], BeforeValidator(as_list)]
Time = Annotated[Union[dt.datetime, dt.date], BeforeValidator(_as_time)]
Percentage = Annotated[
    int,
    BeforeValidator(_as_percentage),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,3} ?%$"}),
]
# A limit, several, or those of each tier; "unlimited" for none.
Limits = Union[str, list[str], dict[str, Union[str, list[str]]]]


class _Fields(BaseModel):
    """Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _pause(cls, fields: Any) -> Any:
        pause_at_times()
        return fields


class _Condition(_Fields):
    endpoints: Texts = Field(
        default=[],
        description="Paths such as /api/posts, /api/*, /users/{id}/posts or /api/**, or other "
        "texts that stand for themselves. `*` and `{name}` are any one part of a path, `**` at "
        "the end any number of parts. All endpoints where there is none.",
    )
    methods: Methods = Field(default=[], description="HTTP methods, such as GET.")
    tiers: Texts = Field(default=[], description="The tiers it is for.")
    networks: Texts = Field(default=[], description="CIDRs of the attribute ip.")


class Reserve(_Fields):
    """What of its limits a rule keeps from requests that are not critical."""

    normal: Percentage = Field(
        default=0, description="What is kept from normal and background requests."
    )
    background: Percentage = Field(default=0, description="What is kept from background requests.")


class _Limited(_Fields):
    by: Annotated[list[Name], BeforeValidator(_as_names)] = Field(
        default=[],
        description="What it counts by: attributes such as user, api_key, ip, endpoint or tenant, "
        "combined with +; or global, one count of all requests.",
    )
    limits: Limits = Field(
        description="A limit such as 100/minute, a list of limits, `unlimited`, or these by tier; "
        "the tier `*` is every other tier.",
    )
    algorithm: Union[Algorithm, None] = Field(default=None, description="Of its limits.")
    shadow: StrictBool = Field(
        default=False, description="Whether it is counted but not enforced: it refuses nothing."
    )
    counts: Literal["cost", "requests"] = Field(
        default="cost",
        description="Whether a request is charged its cost, or one unit whatever it costs.",
    )
    counter: Union[Id, None] = Field(
        default=None,
        description="What its counts are known by, where it is not the id: rules of one counter "
        "that count by the same attributes count together.",
    )
    headers: StrictBool = Field(
        default=True, description="Whether responses tell clients about its limits."
    )
    carry_over: Literal["as-is", "proportional", "reset"] = Field(
        default="as-is",
        description="What stays of its counts when the number of a limit changes: the units used, "
        "the share of the limit that was used (of token-bucket and leaky-bucket), or nothing.",
    )
    reserve: Annotated[Reserve, BeforeValidator(_as_reserve)] = Field(
        default=Reserve(),
        description="The share of its limits that is kept for critical requests, such as 20%; or "
        "what is kept from normal and from background ones.",
    )
    description: Union[str, None] = None


class Rule(_Condition, _Limited):
    """Which requests, what they are counted by, and how much."""

    id: Id
    when: dict[Name, Text] = Field(
        default={}, description="Other attributes that the request must have, and their values."
    )
    replaces: Annotated[list[str], BeforeValidator(as_list)] = Field(
        default=[], description="Ids of rules that do not apply where this one does."
    )
    enabled: StrictBool = True


class Default(_Limited):
    """What applies where no rule does."""

    id: Id = "default"


class Override(_Fields):
    """Other limits for one key of a rule."""

    rule: str
    key: Union[Text, dict[str, Text]] = Field(
        description="The value that the rule counts by; of several the value of each."
    )
    limits: Union[str, list[str]]
    until: Union[Time, None] = Field(
        default=None, description="When it ends: a time with its zone, or a day in UTC."
    )
    reason: str = ""
    algorithm: Union[Algorithm, None] = None


class Cost(_Condition):
    """What a request costs, and how much it matters: 1 and normal where nothing says so."""

    cost: Annotated[int, Field(ge=1, le=2**53 - 1, strict=True)] = 1
    priority: Literal["critical", "normal", "background"] = "normal"
    when: dict[Name, Text] = {}

    @model_validator(mode="after")
    def _says_something(self) -> Cost:
        if not self.model_fields_set & {"cost", "priority"}:
            raise ValueError("has no cost and no priority; expected one of them")
        return self


class ListEntry(_Fields):
    """Requests that are let through, or refused, whatever the rules say."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    endpoints: Texts = []
    methods: Methods = []
    tiers: Texts = []
    networks: Texts = Field(default=[], description="CIDRs, or addresses, of the attribute ip.")
    id: Union[Id, None] = None
    reason: str = ""
    __pydantic_extra__: dict[str, Text]


class Rules(_Fields):
    """A document of rules."""

    version: Literal[1] = 1
    tiers: list[str] = Field(
        default=[], description="The tiers that there are; those that rules name where it is empty."
    )
    default_tier: Union[str, None] = Field(
        default=None, description="Of requests without a tier, or with one that there is not."
    )
    algorithm: Algorithm = Field(
        default="token-bucket", description="Of limits that do not say theirs."
    )
    rules: list[Rule] = []
    default: Union[Default, None] = Field(
        default=None, description="Applies to requests that no rule applies to."
    )
    costs: list[Cost] = []
    overrides: list[Override] = []
    allow: list[ListEntry] = Field(
        default=[], description="Requests that are let through, uncounted."
    )
    block: list[ListEntry] = Field(default=[], description="Requests that are refused.")
