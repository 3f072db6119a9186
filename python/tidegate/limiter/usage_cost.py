"""Costs that are computed from a usage: tokens, weighted by what they are."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction
from types import MappingProxyType

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Union

    Weight = Union[int, float, str, Decimal]

__all__ = ["UsageCost", "usage_in", "weight_of"]

MOST_WEIGHT = 10**9
# So that a weight has at most 15 digits, which the floats of YAML and JSON hold exactly.
DECIMALS = 6
_MOST_UNITS = 2**63 - 1
_SCALE = 10**DECIMALS
_LONGEST_TEXT = 40


class UsageCost:
    """What a usage costs: the sum of its fields, each times its weight, rounded up.

        cost = UsageCost({"input": 1, "cached": 0.1, "output": 5})
        assert cost.units({"input": 300, "output": 20}) == 400

    Weights are 0 to 1e9 with at most six decimals, as int, float, Decimal or text, and count as the
    decimals that they are written as: no float is added. As `cost_after` it reads the usage in what
    the route returned; see usage_in(). Raises ConfigurationError for other weights. Immutable;
    thread-safe.
    """

    __slots__ = ("_scaled", "_weights")

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        if not hasattr(weights, "items"):
            raise ArgumentTypeError(
                f"the weights are {_shown(weights)} of type {type(weights).__name__}; expected a "
                "mapping of fields to weights, such as {'input': 1, 'output': 5}"
            )
        found = {}
        for name, weight in weights.items():
            if not isinstance(name, str) or not name:
                raise ConfigurationError(f"a field of the usage is {name!r:.80}; expected a name")
            try:
                found[name] = weight_of(weight)
            except ConfigurationError as error:
                raise type(error)(f"the weight of {name!r:.80} {error}") from None
        if not any(found.values()):
            raise ConfigurationError(
                f"the weights are {_shown(weights)}; expected at least one above 0"
            )
        self._weights = found
        self._scaled = {name: int(Fraction(weight) * _SCALE) for name, weight in found.items()}

    @property
    def weights(self) -> Mapping[str, Decimal]:
        """The weight of each field."""
        return MappingProxyType(self._weights)

    def units(self, usage: Mapping[str, int]) -> int:
        """Returns what `usage` costs, in whole units.

        A field that `usage` lacks, or that is None, counts 0. Raises ConfigurationError for a field
        that has no weight and is not 0, for a number below 0 and for a sum beyond 2**63 - 1, and
        ArgumentTypeError for what is no int.
        """
        if not hasattr(usage, "items"):
            raise ArgumentTypeError(
                f"the usage is {_shown(usage)} of type {type(usage).__name__}; expected a mapping "
                f"of {', '.join(self._scaled)} to ints"
            )
        total = 0
        for name, used in usage.items():
            if used is None:
                continue
            if isinstance(used, bool) or not isinstance(used, int):
                raise ArgumentTypeError(
                    f"the usage of {name!r:.80} is {_shown(used)} of type {type(used).__name__}; "
                    "expected an int from 0 up"
                )
            if used < 0:
                raise ConfigurationError(
                    f"the usage of {name!r:.80} is {_shown(used)}; expected an int from 0 up"
                )
            weight = self._scaled.get(name)
            if weight is None and used != 0:
                raise ConfigurationError(
                    f"the usage has the field {name!r:.80}; expected {', '.join(self._scaled)}"
                )
            total += (weight or 0) * used
        units: int = -(-total // _SCALE)
        if units > _MOST_UNITS:
            raise ConfigurationError(
                f"the usage costs more than {_MOST_UNITS} units; expected at most that"
            )
        return units

    def __call__(self, request: Any, answer: Any) -> int:
        """Returns what the usage in `answer` costs, for `cost_after`.

        Raises ConfigurationError if there is none: the charge then stays at its estimate.
        """
        usage = usage_in(answer)
        if usage is None:
            raise ConfigurationError(
                f"the answer, of type {type(answer).__name__}, has no usage; expected what a "
                "language model answered"
            )
        return self.units(usage)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UsageCost) and self._scaled == other._scaled

    def __hash__(self) -> int:
        return hash(frozenset(self._scaled.items()))

    def __reduce__(self) -> Any:
        return UsageCost, (self._weights,)

    def __repr__(self) -> str:
        weights = ", ".join(f"{name!r}: {weight}" for name, weight in self._weights.items())
        return f"UsageCost({{{weights}}})"


def weight_of(given: Any) -> Decimal:
    """Returns a weight as the decimal that it is written as. Raises ConfigurationError."""
    expected = f"expected a number from 0 to {MOST_WEIGHT} with at most {DECIMALS} decimals"
    if isinstance(given, bool) or not isinstance(given, (int, float, str, Decimal)):
        raise ArgumentTypeError(f"is {_shown(given)} of type {type(given).__name__}; {expected}")
    try:
        # The text of a float is the shortest that it can have been written as.
        text = str(given).strip()
        weight = Decimal(text) if len(text) <= _LONGEST_TEXT else Decimal("nan")
    except (InvalidOperation, ValueError):
        weight = Decimal("nan")
    if weight.is_finite() and 0 <= weight <= MOST_WEIGHT:
        _, digits, exponent = weight.as_tuple()
        assert isinstance(exponent, int)
        while exponent < 0 and digits[-1:] == (0,):
            digits, exponent = digits[:-1], exponent + 1
        if not digits:
            return Decimal(0)
        if exponent >= -DECIMALS:
            return Decimal((0, digits, exponent))
    raise ConfigurationError(f"is {_shown(given)}; {expected}")


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # an int of thousands of digits
        return "an int of thousands of digits"


def usage_in(answer: Any) -> dict[str, int] | None:
    """Returns the tokens that a language model's answer says it used; None if it says nothing.

    `answer` is the answer, or an event of a stream, as a mapping or as an object of the client
    libraries of OpenAI (chat completions and responses) and Anthropic (messages). The fields are
    ``input``, without cached tokens, ``cached`` and ``output``; those that it does not name are
    left out. Tokens that are written to a cache are input. The first event of a messages stream
    has the input and the last the output: ``{**first, **last}``.
    """
    # What holds it in the first event of a messages stream, and the last of one of responses.
    for holder in (answer, _field(answer, "message"), _field(answer, "response")):
        usage = _field(holder, "usage")
        if usage is not None:
            return _tokens(usage)
    return None


def _tokens(usage: Any) -> dict[str, int] | None:
    found = {}
    for whole, output, details in (
        ("prompt_tokens", "completion_tokens", "prompt_tokens_details"),
        ("input_tokens", "output_tokens", "input_tokens_details"),
    ):
        given = _count(usage, whole)
        if given is not None:
            of_cache = _count(_field(usage, details), "cached_tokens")
            if of_cache is not None:  # they are a part of the whole
                found["input"], found["cached"] = max(0, given - of_cache), of_cache
            else:
                found["input"] = given + (_count(usage, "cache_creation_input_tokens") or 0)
        read = _count(usage, "cache_read_input_tokens")
        if read is not None:
            found["cached"] = read
        written = _count(usage, output)
        if written is not None:
            found["output"] = written
    return found or None


def _count(holder: Any, name: str) -> int | None:
    """A number of tokens; None where it is absent, or no number of tokens."""
    value = _field(holder, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _field(holder: Any, name: str) -> Any:
    get = getattr(holder, "get", None)
    return get(name) if callable(get) else getattr(holder, name, None)
