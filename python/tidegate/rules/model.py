"""The fields of a document of rules."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from decimal import Decimal
from typing import Annotated, Any, Literal, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    StrictBool,
    StringConstraints,
    Tag,
    WithJsonSchema,
    model_validator,
)

from tidegate.limiter.usage_cost import MOST_WEIGHT, UsageCost, weight_of
from tidegate.rules.pauses import pause_at_times
from tidegate.rules.yaml_reader import meant, meant_number
from tidegate.types import Algorithm

__all__ = [
    "Cost",
    "Default",
    "ListEntry",
    "Override",
    "Reserve",
    "Rule",
    "Rules",
    "UsageUnits",
    "as_list",
    "field_names",
]

UNLIMITED = "unlimited"
NAME = "[A-Za-z_][A-Za-z0-9_]{0,63}"
_ID = "[!-~]{1,100}"
_METHOD = "[A-Za-z-]{1,20}"
# Keywords of check(), charge(), refund() and reset() that are not attributes.
RESERVED = frozenset({"cost", "decision", "keep_request", "rules", "self", "usage"})


def as_list(value: Any) -> Any:
    """A single text as a list of one."""
    return [value] if isinstance(value, str) else value


def _as_names(value: Any) -> Any:
    """``user+endpoint`` as a list of names, ``global`` as the empty list."""
    if value == "global":
        return []
    return [name.strip() for name in value.split("+")] if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    """A number or a boolean of a document as the text that a request would have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (float, dt.date)):  # whose text may not be the one that was written
        raise ValueError(f"is {value}, which is not a text here; expected it in quotes")
    return str(value) if isinstance(value, (int, str)) else value


def _as_time(value: Any) -> Any:
    """A time or a day. YAML and TOML have types for them; in JSON they are texts."""
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
    """A single share as the share of normal and of background requests."""
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
UsageName = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Flag = Annotated[StrictBool, BeforeValidator(meant)]
Texts = Annotated[list[str], BeforeValidator(as_list)]
Method = Annotated[
    str,
    AfterValidator(_check_method),
    WithJsonSchema({"type": "string", "pattern": f"^{_METHOD}$"}),
]
Methods = Annotated[list[Method], BeforeValidator(as_list)]
Time = Annotated[Union[dt.datetime, dt.date], BeforeValidator(_as_time)]
Begin = Annotated[
    Union[Time, None],
    Field(alias="from", description="When it begins: a time with its zone, or a day in UTC."),
]
End = Annotated[
    Union[Time, None],
    Field(description="When it ends: a time with its zone, or a day in UTC, as it begins."),
]
Percentage = Annotated[
    int,
    BeforeValidator(_as_percentage),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,3} ?%$"}),
]


def _unlimited_as_written(given: Any) -> Any:
    """Returns `given` without spaces around "unlimited", as those around limits mean nothing."""
    if isinstance(given, str):
        return UNLIMITED if given.strip() == UNLIMITED else given
    if isinstance(given, list):
        return [_unlimited_as_written(each) if isinstance(each, str) else each for each in given]
    if isinstance(given, dict):
        return {tier: _unlimited_as_written(each) for tier, each in given.items()}
    return given


# A limit, several limits, or the limits of each tier; "unlimited" for no limit.
Limits = Annotated[
    Union[str, list[str], dict[str, Union[str, list[str]]]], BeforeValidator(_unlimited_as_written)
]


def field_names(model: type[BaseModel]) -> list[str]:
    """The names of its fields as documents have them."""
    return [field.alias or name for name, field in model.model_fields.items()]


class _Fields(BaseModel):
    """Unknown fields are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), populate_by_name=True
    )

    @model_validator(mode="before")
    @classmethod
    def _pause(cls, fields: Any) -> Any:
        pause_at_times()
        return fields


class _Condition(_Fields):
    endpoints: Texts = Field(
        default=[],
        description="Paths such as /api/posts, /api/*, /users/{id}/posts or /api/**, or other "
        "texts, which match only themselves. `*` and `{name}` are any one part of a path; `**` at "
        "the end is any number of parts. Without this field, all endpoints.",
    )
    methods: Methods = Field(default=[], description="HTTP methods, such as GET.")
    tiers: Texts = Field(default=[], description="The tiers that it is for.")
    networks: Texts = Field(default=[], description="CIDRs that contain the attribute ip.")


class Reserve(_Fields):
    """The shares of its limits that a rule keeps from requests that are not critical."""

    normal: Percentage = Field(
        default=0, description="The share that normal and background requests may not use."
    )
    background: Percentage = Field(
        default=0, description="The share that background requests may not use."
    )


class _Limited(_Fields):
    by: Annotated[list[Name], BeforeValidator(_as_names)] = Field(
        default=[],
        description="The attributes that it counts by, such as user, api_key, ip, endpoint or "
        "tenant, combined with +; or global, which counts all requests together.",
    )
    limits: Limits = Field(
        description="A limit such as 100/minute, a list of limits, `unlimited`, or a mapping of "
        "tiers to these; the tier `*` is every other tier.",
    )
    algorithm: Union[Algorithm, None] = Field(
        default=None, description="The algorithm of its limits."
    )
    shadow: Flag = Field(default=False, description="Whether it only counts and refuses nothing.")
    counts: Literal["cost", "requests"] = Field(
        default="cost",
        description="Whether each request is charged its cost, or one unit whatever it costs.",
    )
    counter: Union[Id, None] = Field(
        default=None,
        description="The name that identifies its usage instead of its id: rules with the same "
        "counter that count by the same attributes count together.",
    )
    headers: Flag = Field(
        default=True, description="Whether responses tell clients about its limits."
    )
    carry_over: Literal["as-is", "proportional", "reset"] = Field(
        default="as-is",
        description="What stays of its usage when the number of a limit changes: the units used; "
        "the share of the limit that was used (token-bucket and leaky-bucket only); or nothing.",
    )
    reserve: Annotated[Reserve, BeforeValidator(_as_reserve)] = Field(
        default=Reserve(),
        description="The share of its limits that only critical requests may use, such as 20%; or "
        "the shares that normal and that background requests may not use.",
    )
    description: Union[str, None] = None


class Rule(_Condition, _Limited):
    """Which requests it applies to, what it counts them by, and its limits."""

    id: Id
    when: dict[Name, Text] = Field(
        default={}, description="Other attributes that a request must have, with their values."
    )
    replaces: Annotated[list[str], BeforeValidator(as_list)] = Field(
        default=[],
        description="Ids of rules that do not apply to requests that this rule applies to.",
    )
    also: Flag = Field(
        default=False,
        description="Whether it adds to the other rules: it replaces none, and none replaces it.",
    )
    enabled: Flag = True


class Default(_Limited):
    """The limits of requests that no rule applies to."""

    id: Id = "default"


class Override(_Fields):
    """The limits that one key of a rule has instead of the rule's."""

    rule: str
    key: Union[Text, dict[str, Text]] = Field(
        description="The value of the attribute that the rule counts by; if there are several, a "
        "mapping of each to its value."
    )
    limits: Annotated[Union[str, list[str]], BeforeValidator(_unlimited_as_written)]
    begin: Begin = None
    until: End = None
    reason: str = ""
    algorithm: Union[Algorithm, None] = None


Units = Annotated[int, Field(ge=1, le=2**53 - 1, strict=True), BeforeValidator(meant_number)]


def _as_weight(value: Any) -> Decimal:
    return weight_of(meant_number(value))


def _as_number(weight: Decimal) -> int | float:
    return int(weight) if weight == int(weight) else float(weight)


Weight = Annotated[
    Decimal,
    BeforeValidator(_as_weight),
    PlainSerializer(_as_number),
    WithJsonSchema({"type": ["number", "string"], "minimum": 0, "maximum": MOST_WEIGHT}),
]


class UsageUnits(_Fields):
    """A cost that is known afterwards: an estimate until then, and weights of a usage."""

    estimate: Units = Field(default=1, description="What a request is charged at first.")
    usage: dict[UsageName, Weight] = Field(
        json_schema_extra={"minProperties": 1},
        description="The weight of each field of the usage, such as input, cached and output: what "
        "is used costs their sum, rounded up.",
    )

    @model_validator(mode="after")
    def _costs_something(self) -> UsageUnits:
        if not any(self.usage.values()):
            raise ValueError("has no weight above 0; expected at least one")
        return self


def _kind_of_cost(given: Any) -> str:
    return "by_usage" if isinstance(given, (dict, BaseModel)) else "units"


class Cost(_Condition):
    """The cost and the priority of a request: 1 and normal if not given."""

    cost: Annotated[
        Union[Annotated[Units, Tag("units")], Annotated[UsageUnits, Tag("by_usage")]],
        Discriminator(_kind_of_cost),
    ] = 1
    priority: Literal["critical", "normal", "background"] = "normal"
    when: dict[Name, Text] = {}

    @property
    def units(self) -> int:
        """What a request is charged at first."""
        return self.cost.estimate if isinstance(self.cost, UsageUnits) else self.cost

    @property
    def millionths(self) -> list[tuple[str, int]]:
        """What a unit of each field of a usage costs; nothing where the cost is a number."""
        if not isinstance(self.cost, UsageUnits):
            return []
        return list(UsageCost(self.cost.usage)._scaled.items())

    @model_validator(mode="after")
    def _says_something(self) -> Cost:
        if not self.model_fields_set & {"cost", "priority"}:
            raise ValueError("has no cost and no priority; expected one of them")
        return self


class ListEntry(_Fields):
    """Requests that are allowed, or refused, whatever the rules say."""

    model_config = ConfigDict(
        extra="allow", frozen=True, protected_namespaces=(), populate_by_name=True
    )

    endpoints: Texts = []
    methods: Methods = []
    tiers: Texts = []
    networks: Texts = Field(
        default=[], description="CIDRs, or addresses, that contain the attribute ip."
    )
    id: Union[Id, None] = None
    begin: Begin = None
    until: End = None
    reason: str = ""
    __pydantic_extra__: dict[str, Text]


class Rules(_Fields):
    """A document of rules."""

    version: Annotated[Literal[1], BeforeValidator(meant)] = 1
    tiers: list[str] = Field(
        default=[], description="All tiers. Without this field, they are those that the rules name."
    )
    attributes: Annotated[list[Name], BeforeValidator(as_list)] = Field(
        default=[],
        description="The attributes that requests have, beside endpoint, method, ip, tier and "
        "priority. A rule that looks at another is refused. Without this field, any is taken.",
    )
    default_tier: Union[str, None] = Field(
        default=None, description="The tier of a request that has none, or an unknown one."
    )
    algorithm: Algorithm = Field(
        default="token-bucket", description="The algorithm of limits that do not name one."
    )
    rules: list[Rule] = []
    default: Union[Default, None] = Field(
        default=None, description="The limits of requests that no rule applies to."
    )
    costs: list[Cost] = []
    overrides: list[Override] = []
    allow: list[ListEntry] = Field(
        default=[], description="Requests that are allowed without being counted."
    )
    block: list[ListEntry] = Field(default=[], description="Requests that are refused.")
