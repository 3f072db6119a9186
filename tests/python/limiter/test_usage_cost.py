"""What a usage costs, and the usage in answers of language models."""

from __future__ import annotations

import pickle
from decimal import Decimal, localcontext
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import tidegate as tg
from hypothesis import given
from hypothesis import strategies as st

COST = tg.UsageCost({"input": 1, "cached": 0.1, "output": 5})
WEIGHTS = st.integers(0, 10**15).map(lambda micros: Decimal(micros).scaleb(-6))


@pytest.mark.parametrize(
    ("usage", "units"),
    [
        ({"input": 300, "output": 20}, 400),
        ({"cached": 1}, 1),
        ({"cached": 10}, 1),
        ({"cached": 11}, 2),
        ({"cached": 3 * 10**15}, 3 * 10**14),  # as floats: 300000000000000.06
        ({"input": None, "output": 1}, 5),
        ({}, 0),
    ],
)
def test_a_usage_costs_its_weighted_sum_rounded_up(usage: Any, units: int) -> None:
    assert COST.units(usage) == units


@given(
    st.dictionaries(st.sampled_from("abcde"), st.tuples(WEIGHTS, st.integers(0, 10**6)), min_size=1)
)
def test_the_sum_is_exact_whatever_form_weights_have(each: dict[str, tuple[Decimal, int]]) -> None:
    weights = {name: weight for name, (weight, _) in each.items()}
    usage = {name: used for name, (_, used) in each.items()}
    if not any(weights.values()):
        return
    exact = sum((Fraction(weights[name]) * usage[name] for name in usage), Fraction(0))
    if exact > 2**63 - 1:
        return
    expected = -int(-exact // 1)
    with localcontext() as context:
        context.prec = 2  # of a service that calculates roughly
        for form in (Decimal, str, float):
            cost = tg.UsageCost({name: form(weight) for name, weight in weights.items()})
            assert cost.units(usage) == expected


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"input": -1}, "the weight of 'input' is -1; expected a number from 0"),
        ({"input": float("nan")}, "the weight of 'input' is nan; expected"),
        ({"input": float("inf")}, "the weight of 'input' is inf; expected"),
        ({"input": 10**9 + 1}, "expected a number from 0 to 1000000000 with at most 6 decimals"),
        ({"input": 10**5000}, "the weight of 'input' is an int of thousands of digits; expected"),
        ({"input": 0.1234567}, "the weight of 'input' is 0.1234567; expected"),
        ({"input": "1/2"}, "the weight of 'input' is '1/2'; expected"),
        ({"input": True}, "the weight of 'input' is True of type bool; expected"),
        ({"input": None}, "the weight of 'input' is None of type NoneType; expected"),
        ({"input": 0}, "expected at least one above 0"),
        ({}, "expected at least one above 0"),
        ({"": 1}, "a field of the usage is ''; expected a name"),
        ([("input", 1)], r"the weights are \[.*\] of type list; expected a mapping"),
    ],
)
def test_other_weights_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=message):
        tg.UsageCost(weights)


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        ({"promt": 1}, "the usage has the field 'promt'; expected input, cached, output"),
        ({"input": -1}, "the usage of 'input' is -1; expected an int from 0 up"),
        ({"input": 1.5}, "the usage of 'input' is 1.5 of type float; expected an int from 0 up"),
        ({"input": True}, "the usage of 'input' is True of type bool"),
        ({"input": -(10**5000)}, "the usage of 'input' is an int of thousands of digits; expected"),
        ({"output": 2**62}, "the usage costs more than 9223372036854775807 units"),
        (300, "the usage is 300 of type int; expected a mapping of input, cached, output to ints"),
    ],
)
def test_other_usages_are_refused(usage: Any, message: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=message):
        COST.units(usage)


def test_the_largest_usage_has_a_cost() -> None:
    assert tg.UsageCost({"rows": 1}).units({"rows": 2**63 - 1}) == 2**63 - 1


def test_equal_weights_are_equal_whatever_form_they_have() -> None:
    same = tg.UsageCost({"input": "1.0", "cached": Decimal("0.10"), "output": 5.0})
    assert same == COST
    assert hash(same) == hash(COST)
    assert pickle.loads(pickle.dumps(COST)) == COST
    assert tg.UsageCost({"input": 1}) != COST
    assert repr(COST) == "UsageCost({'input': 1, 'cached': 0.1, 'output': 5})"


CHAT = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 60},
}
MESSAGES = {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 7}


def as_object(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    return SimpleNamespace(**{name: as_object(each) for name, each in plain.items()})


@pytest.mark.parametrize("form", [lambda plain: plain, as_object])
@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": CHAT}, {"input": 40, "cached": 60, "output": 7}),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 0}}, {"input": 9, "output": 0}),
        (
            {"usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": None}},
            {"input": 9, "output": 1},
        ),
        ({"usage": MESSAGES}, {"input": 40, "cached": 60, "output": 7}),
        (
            {"usage": {**MESSAGES, "cache_creation_input_tokens": 5}},
            {"input": 45, "cached": 60, "output": 7},
        ),
        (
            {
                "usage": {
                    "input_tokens": 100,
                    "input_tokens_details": {"cached_tokens": 60},
                    "output_tokens": 7,
                }
            },
            {"input": 40, "cached": 60, "output": 7},
        ),
        ({"type": "message_start", "message": {"usage": MESSAGES}}, None),
        ({"type": "response.completed", "response": {"usage": MESSAGES}}, None),
        ({"type": "message_delta", "usage": {"output_tokens": 9}}, {"output": 9}),
    ],
)
def test_a_usage_is_found_in_each_form_of_answers(form: Any, answer: Any, usage: Any) -> None:
    expected = usage or {"input": 40, "cached": 60, "output": 7}
    assert tg.usage_in(form(answer)) == expected


@pytest.mark.parametrize("answer", [None, {}, {"usage": None}, "text", ValueError("502"), 5])
def test_an_answer_without_a_usage_has_none(answer: Any) -> None:
    assert tg.usage_in(answer) is None
    with pytest.raises(tg.ConfigurationError, match="has no usage"):
        COST(None, answer)


def test_it_computes_the_cost_of_an_answer() -> None:
    assert COST(None, {"usage": CHAT}) == 40 + 6 + 35


@pytest.mark.parametrize(
    "usage",
    [
        *({}, {"total_tokens": 4}, {"inputTokens": 3}, {"prompt_tokens": "12"}),
        *({"output_tokens": -1}, {"output_tokens": True}),
    ],
)
def test_a_usage_in_another_form_is_none_and_not_free(usage: dict[str, Any]) -> None:
    assert tg.usage_in({"usage": usage}) is None
    with pytest.raises(tg.ConfigurationError, match="has no usage"):
        tg.UsageCost({"input": 1})(None, {"usage": usage})


def test_more_cached_tokens_than_there_are_leave_no_input() -> None:
    usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 7}}
    assert tg.usage_in({"usage": usage}) == {"input": 0, "cached": 7}
