"""The guarantees of TopKeys, against exact counts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tidegate.refusals import TopKeys

# Few keys that come again and many that do not, so that there are evictions.
KEYS = st.one_of(st.sampled_from("abcdef"), st.integers(0, 60).map(str))


@given(keys=st.lists(KEYS, max_size=400), capacity=st.integers(1, 40))
def test_counts_are_within_their_bounds(keys, capacity):
    top = TopKeys(capacity)
    for key in keys:
        top.add(key)
    exact = Counter(keys)
    listed = {each.key: each for each in top.top(capacity)}

    assert top.total == len(keys)
    assert len(top) == len(listed) == min(capacity, len(exact))
    assert top.floor <= len(keys) / capacity
    for key, each in listed.items():
        assert each.count - each.error <= exact[key] <= each.count
        assert each.error <= top.floor
    assert all(exact[key] <= top.floor for key in exact.keys() - listed.keys())
    # So whoever has more than his share of all refusals is listed.
    assert {key for key in exact if exact[key] > len(keys) / capacity} <= listed.keys()
    assert sum(each.count for each in listed.values()) == len(keys)
    if len(exact) <= capacity:
        assert {key: each.count for key, each in listed.items()} == exact


@given(keys=st.lists(KEYS, max_size=100), n=st.integers(0, 50))
def test_the_most_counted_come_first(keys, n):
    top = TopKeys(20)
    for key in keys:
        top.add(key)
    counts = [each.count for each in top.top(20)]
    assert counts == sorted(counts, reverse=True)
    assert [each.count for each in top.top(n)] == counts[:n]


def test_keys_of_one_count_are_in_their_order_and_ten_are_shown():
    top = TopKeys(20)
    for key in "kjihgfedcbaa":
        top.add(key)
    assert [each.key for each in top.top()] == list("abcdefghij")
