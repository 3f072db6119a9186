"""The header fields and bodies of decisions, without any web framework."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import http_sf
import pytest
import tidegate as tg
from hypothesis import given
from hypothesis import strategies as st
from tidegate._core import HeaderFields
from tidegate.web.headers import FAMILIES, Problems, fields_for, retry_seconds
from tidegate.web.request_limiter import RequestDecision

SECOND = 10**9
# A moment after 2023-11-14 22:13:20 UTC.
NOW = 1_700_000_000 * SECOND + 250_000_000


def decided_at(sent, limits, decision, families=FAMILIES, extra=0.0, decided=None):
    """Returns the fields of responses that are sent at that instant."""
    limits = [limits] if isinstance(limits, tg.Limit) else limits
    limiter = tg.Limiter(limits, clock=tg.ManualClock(sent))
    active = SimpleNamespace(fields=fields_for(limiter, limits, families))
    return RequestDecision(active.fields, decision, decided, extra, None, active, ())


def decide(limits, *costs, at=NOW, algorithm="token-bucket"):
    """Returns the decision on the last of several calls at one instant, and the plan's limits."""
    limiter = tg.Limiter(limits, clock=tg.ManualClock(at), algorithm=algorithm)
    decisions = [limiter.hit("key", cost) for cost in costs]
    return decisions[-1], limiter.limits


def told(
    limits, *costs, at=NOW, sent=None, algorithm="token-bucket", families=("x-ratelimit", "ietf")
):
    decision, plan = decide(limits, *costs, at=at, algorithm=algorithm)
    fields = decided_at(at if sent is None else sent, plan, decision, families).fields()
    return {name.decode(): value.decode() for name, value in fields}


def parsed(value):
    """Returns the members of a List with their parameters, by a parser of RFC 9651.

    Only the tests need a parser: the library writes only Strings and Integers, which take a line
    each, and the base install depends on nothing.
    """
    members = http_sf.parse(value.encode("ascii"), tltype="list")
    assert all(type(name) is str for name, _ in members), value
    return members


def test_the_fields_of_an_allowed_response():
    assert told("100/minute", *[1] * 50) == {
        "x-ratelimit-limit": "100",
        "x-ratelimit-remaining": "50",
        "x-ratelimit-reset": "1700000031",  # 30 s from .25 on, rounded up
        "ratelimit-policy": '"100/minute";q=100;w=60',
        "ratelimit": '"100/minute";r=50;t=1',  # one comes in .6 s
    }


def test_the_fields_of_a_refusal():
    assert told("2/minute", 1, 1, 1) == {
        "x-ratelimit-limit": "2",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "1700000061",
        "ratelimit-policy": '"2/minute";q=2;w=60',
        "ratelimit": '"2/minute";r=0;t=30',
        "retry-after": "30",
    }


def test_times_are_rounded_up():
    fields = told("10/second", *[1] * 11)
    assert fields["retry-after"] == "1"
    assert fields["ratelimit"] == '"10/second";r=0;t=1'


def test_an_unused_limit_resets_now():
    fields = told("5/minute", 6)
    assert fields["x-ratelimit-remaining"] == "5"
    assert fields["x-ratelimit-reset"] == "1700000001"


def test_a_refusal_that_no_wait_helps_has_no_retry_after():
    fields = told("5/minute", 6)
    assert "retry-after" not in fields
    assert fields["ratelimit"] == '"5/minute";r=5;t=0'


def test_the_end_of_an_aligned_window_is_sent_to_the_second():
    fields = told("5/minute", 1, algorithm="fixed-window")
    assert fields["x-ratelimit-reset"] == str(-(-NOW // (60 * SECOND)) * 60)


def test_the_reset_of_a_slow_response_is_not_in_the_past():
    fields = told("1/second", 1, sent=NOW + 10 * SECOND)
    assert fields["x-ratelimit-reset"] == str(1_700_000_011)
    assert fields["ratelimit"] == '"1/second";r=0;t=0'


def test_the_window_of_a_slow_response_counts_from_its_sending():
    fields = told("1/minute", 1, sent=NOW + 10 * SECOND)
    assert fields["ratelimit"] == '"1/minute";r=0;t=50'


def test_a_plan_sends_all_policies_and_the_limit_that_binds():
    fields = told(["3/second", "4/hour"], 1, 1, 1)
    assert fields["ratelimit-policy"] == '"3/second";q=3;w=1, "4/hour";q=4;w=3600'
    assert fields["ratelimit"] == '"3/second";r=0;t=1'
    assert fields["x-ratelimit-limit"] == "3"


def test_limits_in_shadow_are_not_shown():
    tried = tg.Limit("1/minute", shadow=True)
    fields = told(["10/minute", tried], 1, 1)
    assert fields["ratelimit-policy"] == '"10/minute";q=10;w=60'
    assert fields["ratelimit"] == '"10/minute";r=8;t=6'
    assert told(tried, 1, 1) == {}


def test_a_burst_is_the_limit_and_the_rate_is_the_policy():
    fields = told("10/second burst 40", 1)
    assert fields["x-ratelimit-limit"] == "40"
    assert fields["ratelimit-policy"] == '"10/second burst 40";q=10;w=1'


def test_a_window_of_fractional_seconds_is_rounded_up():
    assert told("10/100 ms", 1)["ratelimit-policy"].endswith(";q=10;w=1")


@pytest.mark.parametrize(
    "name", ['a "quoted" name', "back\\slash", "100% {of} %d %s", "a;b=c, d", " "]
)
def test_names_are_quoted(name):
    limit = tg.Limit("1/minute", name=name)
    fields = told(limit, 1, 1)
    assert parsed(fields["ratelimit-policy"]) == [(name, {"q": 1, "w": 60})]
    assert parsed(fields["ratelimit"]) == [(name, {"r": 0, "t": 60})]
    decision, limits = decide(limit, 1, 1)
    assert json.loads(Problems(limits).encode(decision, retry_seconds(decision)))[
        "violated-policies"
    ] == [name]
    decision, limits = decide(limit, 2)
    assert json.loads(Problems(limits).encode(decision, retry_seconds(decision)))[
        "violated-policies"
    ] == [name]


PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)


@given(
    plan=st.lists(
        st.tuples(PRINTABLE, st.integers(1, 10**9), st.integers(1, 10**6)),
        min_size=1,
        max_size=6,
        unique_by=lambda limit: limit[0],
    ),
    costs=st.lists(st.integers(1, 10), min_size=1, max_size=5),
)
def test_fields_can_be_read_back_whatever_the_names_of_limits(plan, costs):
    # Two limits of one algorithm, count and period would be equal.
    limits = [
        tg.Limit(count, period + n, name=name) for n, (name, count, period) in enumerate(plan)
    ]
    decision, limits = decide(limits, *costs)
    fields = dict(decided_at(NOW, limits, decision).fields())
    policies = parsed(fields[b"ratelimit-policy"].decode())
    stated = [(each.name, {"q": each.count, "w": each.period_ns // SECOND}) for each in limits]
    assert policies == stated
    ((name, parameters),) = parsed(fields[b"ratelimit"].decode())
    assert name == decision.rule
    assert parameters["r"] == decision.remaining
    assert parameters.keys() == {"r", "t"}
    # The parser's own library writes the same text.
    assert http_sf.ser(policies).encode() == fields[b"ratelimit-policy"]


@pytest.mark.parametrize("name", ["line\nbreak", "r\rn", "tab\t", "naïve", "\x7f", "\0", ""])
def test_names_that_no_header_can_hold_are_refused(name):
    with pytest.raises(tg.ConfigurationError, match="name"):
        tg.Limit("1/minute", name=name)


@pytest.mark.parametrize(
    ("families", "names"),
    [
        (("x-ratelimit",), {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}),
        ("ietf", {"ratelimit", "ratelimit-policy"}),
        ((), set()),
    ],
)
def test_families_can_be_chosen_but_retry_after_is_always_sent(families, names):
    assert told("1/minute", 1, families=families).keys() == names
    assert told("1/minute", 1, 1, families=families).keys() == names | {"retry-after"}


@pytest.mark.parametrize("families", [("x-rate-limit",), "IETF", (b"ietf",), (None,)])
def test_unknown_families_are_refused(families):
    with pytest.raises(tg.ConfigurationError, match="expected 'x-ratelimit', 'ietf'"):
        fields_for(tg.Limiter("1/minute"), [tg.Limit("1/minute")], families)


@pytest.mark.parametrize("families", [None, 3, b"ietf"])
def test_families_of_a_wrong_type_are_refused(families):
    with pytest.raises(TypeError, match="expected"):
        fields_for(tg.Limiter("1/minute"), [tg.Limit("1/minute")], families)


def test_the_body_of_a_refusal():
    decision, limits = decide("2/minute", 1, 1, 1)
    assert json.loads(Problems(limits).encode(decision, retry_seconds(decision))) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "The limit 2/minute refused this request. Try again in 30 s.",
        "violated-policies": ["2/minute"],
        "error": "rate_limit_exceeded",
        "retry_after": 30,
    }


def test_the_body_of_a_refusal_that_never_ends():
    decision, limits = decide("2/minute", 3)
    body = json.loads(Problems(limits).encode(decision, retry_seconds(decision)))
    assert body["retry_after"] is None
    assert body["detail"].endswith("It never lets through as much as this at once.")


INNER = [
    (b"content-type", b"text/plain"),
    (b"x-ratelimit-limit", b"5"),
    (b"ratelimit", b'"a";r=1'),
    (b"retry-after", b"3"),
]


def as_text(headers):
    return [(name.decode().title(), value.decode()) for name, value in headers]


def test_fields_set_nearer_to_the_route_stay():
    decision, limits = decide("2/minute", 1, 1, 1)
    outcome = decided_at(NOW, limits, decision)
    nearer = (b"x-ratelimit-limit", b"retry-after")
    ours = dict(outcome.fields())
    left_open = [(n, v) for n, v in ours.items() if n not in (*nearer, b"ratelimit")]
    assert len(left_open) == 3
    # Lists are joined into one.
    inner = [
        (name, value + b", " + ours[b"ratelimit"] if name.lower() == b"ratelimit" else value)
        for name, value in INNER
    ]
    assert inner != INNER
    assert outcome.merged(INNER) == inner + left_open
    # ASGI allows any iterable of any pairs.
    as_lists = [list(pair) for pair in INNER]
    assert [tuple(pair) for pair in outcome.merged(iter(as_lists))] == inner + left_open
    text = outcome.merged_text(as_text(INNER))
    assert text[: len(INNER)] == as_text(inner)
    assert [(n.lower().encode(), v.encode()) for n, v in text[len(INNER) :]] == left_open


@pytest.mark.parametrize(
    ("name", "there", "joined"),
    [
        ("a", '"b";r=1;t=2', '"b";r=1;t=2, "a";r=1;t=30'),
        ("a", '"a";r=1;t=9', '"a";r=1;t=9'),
        ("a", '"a";r=0;t=9, "b";r=1', '"a";r=0;t=9, "b";r=1'),
        ("a", '"b";r=1 ,"a";r=7;t=9,"c";r=1', '"b";r=1 ,"a";r=1;t=30,"c";r=1'),
        ("a", '"x, \\"a\\";r=1";r=2', '"x, \\"a\\";r=1";r=2, "a";r=1;t=30'),
        ('a, "b', '"c";r=1', '"c";r=1, "a, \\"b";r=1;t=30'),
        ('a, "b', '"a, \\"b";r=0', '"a, \\"b";r=0'),
        ("a", "", '"a";r=1;t=30'),
    ],
)
def test_one_member_of_each_name_is_sent(name, there, joined):
    decision, limits = decide(tg.Limit("2/minute", name=name), 1)
    outcome = decided_at(NOW, limits, decision)
    (policy,) = (value for field, value in outcome.text_fields() if field == "RateLimit-Policy")
    given = [("RateLimit", there), ("RateLimit-Policy", policy)]
    told = dict(outcome.merged_text(given))
    assert told["RateLimit"] == joined
    assert told["RateLimit-Policy"] == policy


def test_each_interface_gets_names_in_its_own_form():
    decision, limits = decide("2/minute", 1, 1, 1)
    outcome = decided_at(NOW, limits, decision)
    text = outcome.text_fields()
    assert [name for name, _ in text] == [
        "X-RateLimit-Limit",
        "X-RateLimit-Remaining",
        "X-RateLimit-Reset",
        "RateLimit-Policy",
        "RateLimit",
        "Retry-After",
    ]
    raw = [(name.lower().encode(), value.encode()) for name, value in text]
    assert outcome.fields() == raw


def test_merging_does_not_change_the_given_headers():
    decision, limits = decide("2/minute", 1)
    given_headers = [(b"content-type", b"text/plain")]
    decided_at(NOW, limits, decision).merged(given_headers)
    assert given_headers == [(b"content-type", b"text/plain")]


def test_put_replaces_fields_that_are_set():
    decision, limits = decide("2/minute", 1)
    headers = [(b"RateLimit", b"old"), *INNER, (b"x-ratelimit-reset", b"1"), (b"x", b"")]
    same = headers
    outcome = decided_at(NOW, limits, decision)
    outcome.put(headers)
    assert headers is same
    # The decision has no Retry-After, so the existing one stays.
    kept = [(b"content-type", b"text/plain"), (b"retry-after", b"3"), (b"x", b"")]
    assert headers == kept + outcome.fields()
    outcome.put(headers)
    assert headers == kept + outcome.fields()
    only = decided_at(NOW, limits, decision, ["ietf"])
    headers = [*INNER]
    only.put(headers)
    assert headers == [*INNER[:2], INNER[3], *only.fields()]


@pytest.mark.parametrize("odd", [None, 5, "text/plain", b"\xff", ""])
def test_invalid_names_are_left_alone(odd):
    decision, limits = decide("2/minute", 1)
    outcome = decided_at(NOW, limits, decision)
    assert outcome.merged([(odd, odd)]) == [(odd, odd), *outcome.fields()]
    headers = [(odd, odd)]
    outcome.put(headers)
    assert headers == [(odd, odd), *outcome.fields()]
    text = outcome.merged_text([(odd, odd), ("x-ratelimit-limit\xe9", "")])
    assert text[2:] == outcome.text_fields()


@pytest.mark.parametrize("headers", [5, [5], [()], None])
def test_headers_that_are_not_pairs_are_an_error(headers):
    decision, limits = decide("2/minute", 1)
    outcome = decided_at(NOW, limits, decision)
    for method in (outcome.merged, outcome.merged_text, outcome.put):
        with pytest.raises((TypeError, ValueError)):
            method(headers)
    with pytest.raises(TypeError):
        outcome.put(((b"a", b"b"),))


def test_the_constructor_checks_its_arguments():
    decision, limits = decide("2/minute", 3)
    limiter = tg.Limiter(limits)
    fields = fields_for(limiter, limits)
    kept = RequestDecision(fields, decision, None, 0.0, "limiter", "limits", ())
    assert (kept.limiter, kept.limits, kept.charges) == ("limiter", "limits", ())
    for wrong in (
        (),
        (fields, decision, None, 0.0, None, None),
        (fields, None, None, 0.0, None, None, ()),
        (fields, decision, "now", 0.0, None, None, ()),
        (fields, decision, None, "long", None, None, ()),
        (None, decision, None, 0.0, None, None, ()),
        (HeaderFields.__new__(HeaderFields), decision, None, 0.0, None, None, ()),
    ):
        with pytest.raises(TypeError):
            RequestDecision(*wrong)


def test_extra_seconds_apply_only_to_refusals_that_end():
    decision, limits = decide("2/minute", 1, 1, 1)
    fields = dict(decided_at(NOW, limits, decision, extra=2.5).fields())
    assert fields[b"retry-after"] == b"33"
    assert fields[b"ratelimit"] == b'"2/minute";r=0;t=33'
    incurable, limits = decide("2/minute", 3)
    assert b"retry-after" not in dict(decided_at(NOW, limits, incurable, extra=2.5).fields())


def test_the_longest_names_and_numbers_fit():
    limit = tg.Limit(2**53 - 1, 100 * 365 * 86400, name='"' * 200)
    fields = told(limit, 2**53)
    assert fields["x-ratelimit-remaining"] == str(2**53 - 1)
    # An Integer has at most 15 digits.
    assert parsed(fields["ratelimit"]) == [('"' * 200, {"r": 10**15 - 1, "t": 0})]
    policy = {"q": 10**15 - 1, "w": 100 * 365 * 86400}
    assert parsed(fields["ratelimit-policy"]) == [('"' * 200, policy)]


def test_the_instant_of_a_decision_may_come_from_another_clock():
    decision, limits = decide("1/minute", 1)
    hour = 3600 * SECOND
    fields = dict(decided_at(NOW + hour, limits, decision, decided=NOW + hour).fields())
    assert fields[b"x-ratelimit-reset"] == str(-(-(NOW + hour) // SECOND) + 60).encode()
    assert fields[b"ratelimit"] == b'"1/minute";r=0;t=60'


@given(
    algorithm=st.sampled_from(
        ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]
    ),
    count=st.integers(1, 20),
    period=st.integers(1, 400 * SECOND),
    at=st.integers(0, 2 * 10**18),
    costs=st.lists(st.integers(1, 25), min_size=1, max_size=30),
    late=st.integers(0, 500 * SECOND),
)
def test_the_fields_obey_their_laws(algorithm, count, period, at, costs, late):
    limit = tg.Limit(count, period / 1e9, algorithm=algorithm)
    limiter = tg.Limiter(limit, clock=tg.ManualClock(at))
    for cost in costs:
        decision = limiter.hit("key", cost)
    for name, value in decided_at(at + late, limit, decision).fields():
        if name in (b"ratelimit", b"ratelimit-policy"):
            ((_, parameters),) = parsed(value.decode())
            assert all(type(number) is int and number >= 0 for number in parameters.values())
        else:
            assert value.decode().isdigit()
    fields = dict(decided_at(at + late, limit, decision).fields())
    reset = int(fields[b"x-ratelimit-reset"])
    assert reset * SECOND >= at + late
    assert reset * SECOND >= at + math.floor(decision.reset_after * 1e9)
    waits = not decision.allowed and decision.retry_after != math.inf
    assert (b"retry-after" in fields) == waits
    if waits:
        wait = int(fields[b"retry-after"])
        assert decision.retry_after <= wait < decision.retry_after + 1
        assert parsed(fields[b"ratelimit"].decode())[0][1]["t"] <= wait
