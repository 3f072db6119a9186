"""Laws that tests hold storages to, each in the folder of what the storage needs."""

from __future__ import annotations

from typing import Any

import tidegate as tg
from tidegate.rules import RuleSet


def check_a_suspended_user_keeps_the_usage(
    carry_over: str, algorithm: str, period: str, **options: Any
) -> None:
    def rules(count: int) -> RuleSet:
        rule = {"id": "r", "by": "user", "carry_over": carry_over, "algorithm": algorithm}
        return RuleSet({"rules": [{**rule, "limit": f"{count}/{period}"}]})

    with tg.Limiter(rules=rules(10), **options) as limiter:
        assert limiter.check(user="1", cost=9)
        limiter.use(rules(0))
        for _ in range(2):
            assert not limiter.check(user="1")
        limiter.use(rules(10))
        assert limiter.peek(user="1").remaining == 1


def check_an_extension_never_takes_the_place_of_another(
    limiter: tg.Limiter, clock: tg.ManualClock
) -> None:
    """The limiter has one place, for a minute."""
    admitted = limiter.hit("k")
    clock.advance(61)
    other = limiter.hit("k")
    assert other.allowed
    assert limiter._extend("k", 1, admitted) is not None
    standing = limiter.peek("k")
    assert (standing.remaining, standing.retry_after) == (0, 60.0)
    limiter._release("k", 1, other)
    assert limiter.peek("k").remaining == 1


def check_whoever_lost_a_place_takes_none_from_others(
    limiter: tg.Limiter, clock: tg.ManualClock
) -> None:
    """The limiter has one place, for a minute."""
    lost = limiter.hit("k")
    limiter.reset("k")
    clock.advance_ns(1)
    other = limiter.hit("k")
    assert other.allowed
    limiter._release("k", 1, lost)
    limiter.refund("k", decision=lost)
    assert limiter._extend("k", 1, lost) is not None
    standing = limiter.peek("k")
    assert (standing.remaining, standing.retry_after) == (0, 60.0)
    limiter._release("k", 1, other)
    assert limiter.peek("k").remaining == 1
    clock.advance_ns(1)
    assert limiter.hit("k").allowed
    limiter._release("k", 1, other)
    assert limiter.peek("k").remaining == 0
