"""Limits and their grammar."""

from __future__ import annotations

from tidegate import _core
from tidegate._core import Limit
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Union

    from tidegate.types import Algorithm, Oversize

    LimitLike = Union[str, Limit, Iterable[Union[str, Limit]]]

__all__ = ["Limit", "LimitLike", "as_limits", "check_names", "distinct", "parse", "parse_many"]

# The name in pickles and error messages.
Limit.__module__ = "tidegate"

_AT_ONCE = " at once"


def parse(text: str, *, algorithm: Algorithm = "token-bucket") -> Limit:
    """Reads one limit, such as ``"100/minute"``, ``"10/second burst 40"`` or ``"5 at once"``, which
    is a concurrency limit whose leases last a minute.

    Raises ConfigurationError if `text` is not a limit.
    """
    if not isinstance(text, str):
        raise ArgumentTypeError(
            f"the limit is {text!r} of type {type(text).__name__}; "
            "expected a text such as '100/minute'"
        )
    if text.rstrip().endswith(_AT_ONCE):
        count = text.rstrip()[: -len(_AT_ONCE)].strip()
        if not (count.isascii() and count.isdigit() and int(count)):
            raise ConfigurationError(
                f"the limit is {text!r}; expected a whole number from 1 up before 'at once'"
            )
        return Limit(f"{count}/minute", algorithm="concurrency", name=f"{count} at once")
    return Limit(text, algorithm=algorithm)


def parse_many(text: str, *, algorithm: Algorithm = "token-bucket") -> list[Limit]:
    """Reads limits separated by ``;``, ``,`` or ``|``: ``"5/2 seconds; 100/hour"``.

    Raises ConfigurationError if one of them is not a limit.
    """
    if isinstance(text, str) and _AT_ONCE in text:
        return [
            parse(each, algorithm=algorithm)
            for each in text.replace(";", ",").replace("|", ",").split(",")
        ]
    return _core.parse_many(text, algorithm=algorithm)


def as_limits(limits: LimitLike, algorithm: Algorithm) -> list[Limit]:
    """The limits that Limiter accepts, as a list. `algorithm` applies to texts."""
    if isinstance(limits, str):
        return parse_many(limits, algorithm=algorithm)
    parse("1/second", algorithm=algorithm)  # an invalid one is refused also if no text uses it
    if isinstance(limits, Limit):
        return [limits]
    if isinstance(limits, (bytes, dict)) or not hasattr(limits, "__iter__"):
        raise ArgumentTypeError(
            f"the limit is {limits!r} of type {type(limits).__name__}; expected a Limit, "
            "a text such as '100/minute', or a list of them"
        )
    result: list[Limit] = []
    for item in limits:
        if not isinstance(item, (str, Limit)):
            raise ArgumentTypeError(
                f"the limits are {limits!r}, with {item!r} of type {type(item).__name__}; expected "
                "texts such as '100/minute', and Limits such as Limit(100, 60)"
            )
        result.append(item if isinstance(item, Limit) else parse(item, algorithm=algorithm))
    if not result:
        raise ConfigurationError("no limit was given; expected at least one")
    check_names(result)
    return result


def check_names(limits: Iterable[Limit]) -> None:
    """Raises ConfigurationError if two limits of one name differ: decisions name limits."""
    named: dict[str, Limit] = {}
    for limit in limits:
        known = named.setdefault(limit.name, limit)
        if (str(known), known.algorithm) != (str(limit), limit.algorithm):
            texts = [str(known), str(limit)]
            if texts[0] == texts[1]:
                texts = [f"{known} ({known.algorithm})", f"{limit} ({limit.algorithm})"]
            raise ConfigurationError(
                f"two limits have the name {limit.name!r}: {texts[0]} and {texts[1]}; expected "
                f"names that tell them apart, such as Limit({str(limit)!r}, "
                f"algorithm={limit.algorithm!r}, name='strict')"
            )


def distinct(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """`limits` without those that are equal to an earlier one, as Limiter::Create() of the core.

    Of an enforced limit and an equal one in shadow the enforced one stays.
    """
    kept: dict[tuple[str, str, str | None], Limit] = {}
    for limit in limits:
        identity = (limit.algorithm, str(limit), limit.id)
        if identity not in kept or (kept[identity].shadow and not limit.shadow):
            kept[identity] = limit
    return tuple(kept.values())


def _restore(
    text: str,
    algorithm: Algorithm,
    name: str | None,
    shadow: bool,
    id: str | None,
    rule: str | None,
    max_debt: float | None = None,
    oversize: Oversize = "refuse",
) -> Limit:
    limit = Limit(
        text,
        algorithm=algorithm,
        name=name,
        shadow=shadow,
        id=id,
        max_debt=max_debt,
        oversize=oversize,
    )
    return limit if rule is None else _core.limit_of_rule(limit, rule)
