"""The waits that refusals ask for, as services and as strangers write them."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.outbound.server_wait import exhausted_for, server_wait

HTTP_DATE = "Tue, 14 Nov 2023 22:13:20 GMT"
LATER = "Tue, 14 Nov 2023 22:14:05 GMT"


@pytest.mark.parametrize(
    ("fields", "wait"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "4000000000"}, 4e9),
        ({"retry-after": "9" * 23}, 1e23),
        ({"retry-after": LATER, "date": HTTP_DATE}, 45.0),
        ({"retry-after": HTTP_DATE, "date": LATER}, 0.0),
        ({"ratelimit": '"burst";r=0;t=30'}, 30.0),
        ({"ratelimit": '"second";r=4;t=1, "hour";r=0;t=1800'}, 1800.0),
        ({"ratelimit": '"second";r=4;t=1, "hour";r=3;t=1800'}, 1800.0),
        ({"ratelimit": '"a;r=0;t=9,";r=0;t=3'}, 3.0),
        ({"ratelimit": '"a";r=0;t=3;pk=:c2VjcmV0:'}, 3.0),
        ({"ratelimit": "default;r=0;t=12"}, 12.0),
        ({"ratelimit": "limit=100, remaining=0, reset=50"}, 50.0),
        ({"ratelimit-reset": "20"}, 20.0),
        ({"ratelimit": '"a";r=0;t=999999999999'}, 999999999999.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "5h"}, 18000.0),
        ({"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "5h"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "40"}, 40.0),
        # The more precise one goes first, and one that says nothing is passed over.
        ({"retry-after": "5", "ratelimit": '"a";r=0;t=30'}, 5.0),
        ({"retry-after": "soon", "ratelimit": '"a";r=0;t=30'}, 30.0),
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "5, 5"}, None),
        ({"retry-after": "9" * 500}, None),
        ({"retry-after": "1" * 100_000}, None),
        ({"retry-after": "Tue, 99 Nov 99999 22:13:20 GMT"}, None),
        ({"ratelimit": '"a";r=0'}, None),
        ({"ratelimit": '"a;r=0;t=3'}, None),
        ({"ratelimit": '";' * 100_000}, None),
        ({"ratelimit": '"a";r=0;t=-3'}, None),
    ],
)
def test_the_fields_of_a_response_say_how_long_to_wait(
    fields: dict[str, str], wait: float | None
) -> None:
    assert server_wait(fields) == wait


def test_a_date_is_compared_with_the_clients_clock_if_the_server_sent_no_date() -> None:
    wait = server_wait({"retry-after": formatdate(time.time() + 3600, usegmt=True)})
    assert wait is not None
    assert 3500 < wait < 3700


@given(st.sampled_from(["retry-after", "ratelimit", "ratelimit-reset", "date"]), st.text())
def test_nothing_that_a_stranger_sends_raises(name: str, value: str) -> None:
    wait = server_wait({name: value, **({"retry-after": LATER} if name == "date" else {})})
    assert wait is None or wait >= 0


@given(st.text(alphabet='"\\;,=rt01 :()?abc', max_size=60))
def test_no_shape_of_a_list_raises(value: str) -> None:
    wait = server_wait({"ratelimit": value})
    assert wait is None or wait >= 0


@pytest.mark.parametrize(
    ("fields", "wait"),
    [
        ({"ratelimit": '"a";r=0;t=30'}, 30.0),
        ({"ratelimit": '"a";r=1;t=30'}, 0.0),
        ({"ratelimit": '"a";r=4;t=1, "b";r=0;t=1800, "c";r=0;t=5'}, 1800.0),
        ({"ratelimit": "limit=100, remaining=0, reset=50"}, 50.0),
        ({"ratelimit": "limit=100, remaining=3, reset=50"}, 0.0),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "7"}, 7.0),
        (
            {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1700000045", "date": HTTP_DATE},
            45.0,
        ),
        ({"x-ratelimit-remaining": "12", "x-ratelimit-reset": "1700000045"}, 0.0),
        (
            {
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "6m0.5s",
            },
            360.5,
        ),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20ms"}, 0.02),
        (
            {
                "anthropic-ratelimit-output-tokens-remaining": "0",
                "anthropic-ratelimit-output-tokens-reset": "2023-11-14T22:14:05Z",
                "date": HTTP_DATE,
            },
            45.0,
        ),
        ({}, None),
        ({"retry-after": "7"}, None),
        ({"x-ratelimit-remaining": "9" * 5000, "x-ratelimit-reset": "7"}, None),
        ({"x-ratelimit-remaining": "0"}, None),
        ({"x-ratelimit-remaining": "-1", "x-ratelimit-reset": "7"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "soon"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "2023-11-14T22:14:05"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1s" * 500}, None),
        ({"ratelimit": '"a;r=0;t=3'}, None),
    ],
)
def test_what_a_response_says_of_the_limits(fields: dict[str, str], wait: float | None) -> None:
    assert exhausted_for(fields) == wait
