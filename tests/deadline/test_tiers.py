"""Tier profiles give each library its own timeout object, never 0, never more than what is left."""

from __future__ import annotations

import math
import warnings

import aiohttp
import httpx
import httpx2
import pytest
import urllib3

from gatepost.deadline import DeadlineExceeded, deadline
from gatepost.deadline.tiers import CROSS_REGION, DATASTORE, SAME_DC, THIRD_PARTY, TIERS, TierWarning, timeouts_for
from gatepost.errors import ConfigurationError


def test_the_profiles_are_those_of_the_field() -> None:
    """50 ms to connect in the house, 200 ms across regions, 3.1 s outside: topology, not taste."""
    assert (SAME_DC.connect, CROSS_REGION.connect, DATASTORE.connect, THIRD_PARTY.connect) == (0.05, 0.2, 0.05, 3.1)
    assert (DATASTORE.read, SAME_DC.read, CROSS_REGION.read, THIRD_PARTY.read) == (1.0, 1.0, 2.0, 10.0)
    assert [tier.internal for tier in TIERS.values()] == [True, True, False, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tier in TIERS.values():
            tier.evolve(name=tier.name)


def test_equal_connect_and_read_limits_warn_with_what_to_write() -> None:
    """5 s and 5 s: a dead host takes as long to notice as the slowest answer."""
    with pytest.warns(TierWarning, match=r"write connect=0\.5 or less"):
        SAME_DC.evolve(connect=5.0, read=5.0)
    with pytest.warns(TierWarning):
        THIRD_PARTY.evolve(read=5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Nobody can connect faster than the network is: 50 ms beside a fast service is right.
        assert SAME_DC.for_p99(0.040).read == pytest.approx(0.06)


@pytest.mark.parametrize("field", ["connect", "write", "read", "pool"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_that_is_none_is_refused(field: str, value: float) -> None:
    """0 and -1 mean "for ever" to somebody."""
    with pytest.raises(ConfigurationError, match=field):
        SAME_DC.evolve(**{field: value})


def test_each_library_gets_its_own_object() -> None:
    """So that nobody writes `timeout=30`."""
    given = timeouts_for(THIRD_PARTY)
    assert given.httpx() == httpx.Timeout(connect=3.1, read=10.0, write=5.0, pool=1.0)
    assert given.httpx2() == httpx2.Timeout(connect=3.1, read=10.0, write=5.0, pool=1.0)
    assert given.requests() == (3.1, 10.0)
    total = given.aiohttp()
    assert isinstance(total, aiohttp.ClientTimeout)
    assert (total.total, total.sock_connect, total.sock_read) == (THIRD_PARTY.total, 3.1, 10.0)
    assert total.ceil_threshold == math.inf
    assert isinstance(given.urllib3(), urllib3.Timeout)
    assert (given.urllib3().connect_timeout, given.urllib3().read_timeout) == (3.1, 10.0)
    store = timeouts_for(DATASTORE)
    assert store.psycopg() == {"connect_timeout": 2, "tcp_user_timeout": 1000}
    assert store.asyncpg()["command_timeout"] == 1.0


def test_no_limit_is_longer_than_what_is_left() -> None:
    """The deadline beats the profile in every phase."""
    with deadline(0.03):
        given = timeouts_for(THIRD_PARTY)
        assert 0 < given.connect == given.read == given.total <= 0.03
    with deadline(0.0), pytest.raises(DeadlineExceeded, match="third_party"):
        timeouts_for(THIRD_PARTY)


def test_the_reserve_is_a_twentieth_within_bounds() -> None:
    """Enough for the way back of a short budget, not a share of a long one."""
    assert SAME_DC.reserve_for(2.0) == 0.010
    assert SAME_DC.reserve_for(0.1) == pytest.approx(0.005)
    assert SAME_DC.reserve_for(0.005) == 0.001
    assert THIRD_PARTY.reserve_for(2.0) == 0.0
