"""A short run of the campaign of `make owed`."""

from __future__ import annotations

import reservations_campaign


def test_no_unit_is_lost_or_charged_twice() -> None:
    outcome = reservations_campaign.run(1500, workers=2, pause=0.1, seed=7)
    assert outcome.reservations >= 1500
    assert outcome.lost_or_doubled == 0, outcome
