"""The laws of client_ip(), for headers that anybody may have written."""

from __future__ import annotations

from pathlib import Path

import forwarding_laws
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus" / "forwarded_fuzz"

PARTS = st.one_of(
    st.sampled_from(
        [
            *("for=", "For=", "by=", "proto=https", "host=", "unknown", "_hidden", "10.2.3.4"),
            *("203.0.113.9", "[2001:db8::1]:80", "2001:db8:ffff::1", "::ffff:10.1.1.1", ":80"),
        ]
    ),
    st.text(st.sampled_from('",;=\\[]:._ \t019afx%\xff\x00'), max_size=6),
)


# A hop that is not believed was, where there was no header and nobody may be believed.
@example(line="")
@example(line="1.1.1.1, 2.2.2.2")
# An open quotation of a stranger must not swallow what follows it.
@example(line='for="x')
@example(line='for="x\\')
@given(line=st.lists(PARTS, max_size=12).map("".join))
def test_only_what_proxies_wrote_decides(line):
    forwarding_laws.check(line)


@pytest.mark.parametrize("seed", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_what_the_fuzzer_begins_with_keeps_the_laws(seed):
    forwarding_laws.check(seed.read_bytes().decode("latin-1"))
