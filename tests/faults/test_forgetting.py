"""Keys that are invented to have exhausted clients forgotten must be charged as often as those."""

import forget_campaign as campaign
import pytest
from forget_campaign import Attack


@pytest.mark.parametrize("store", campaign.STORES)
@pytest.mark.parametrize("algorithm", campaign.ALGORITHMS)
@pytest.mark.parametrize(
    "costs", [campaign.AT_ONCE, campaign.ALMOST_AT_ONCE, campaign.IN_TWO], ids=str
)
def test_no_exhausted_client_is_forgotten_for_keys_of_few_charges(
    store: str, algorithm: str, costs: tuple[int, ...]
) -> None:
    # The bytes of logs in memory are of 256 parts, each of which needs room for some.
    capacity = 25_000 if algorithm in ("sliding-log", "concurrency") else 5_000
    attack = Attack(store, algorithm, costs, capacity=capacity, most=6.0)
    outcome = campaign.run(attack)
    assert outcome.evicted_live > attack.room
    assert outcome.forgotten == 0


@pytest.mark.parametrize("store", campaign.STORES)
@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window"])
def test_clients_that_go_on_and_are_refused_stay_refused(store: str, algorithm: str) -> None:
    attack = Attack(store, algorithm, campaign.AT_ONCE, active=True, capacity=5_000, most=6.0)
    assert campaign.run(attack).forgotten == 0
