"""`ClientPolicy`: every impossible value is refused in words that say what to write, and `explain` tells where values come from."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import pytest
from hypothesis import given, strategies

from gatepost.delivery.policy import LONGEST, POOL_FIELDS, ClientPolicy, parse_field
from gatepost.errors import ConfigurationError

FIELDS = {field.name: field.default for field in dataclasses.fields(ClientPolicy)}
OPTIONAL = ("dns_timeout", "tls_timeout", "total_timeout")
SECONDS = [name for name, default in FIELDS.items() if isinstance(default, float) or name in OPTIONAL]
COUNTS = [name for name, default in FIELDS.items() if type(default) is int]
SWITCHES = [name for name, default in FIELDS.items() if isinstance(default, bool)]
MAY_BE_ZERO = {"dns_ttl", "keepalive_expiry", "max_response_body", "max_interim_responses"}


def policy(**changes: Any) -> ClientPolicy:
    """A policy with these fields; `Any`, because most tests give what the types forbid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ClientPolicy(**changes)


def test_the_defaults_are_those_of_the_documentation() -> None:
    """People plan capacity with these figures; a changed default is a change of behaviour for everybody."""
    assert FIELDS == {
        "connect_timeout": 3.0,
        "write_timeout": 5.0,
        "read_timeout": 10.0,
        "pool_timeout": 2.0,
        "admission_timeout": 1.0,
        "dns_timeout": None,
        "tls_timeout": None,
        "total_timeout": None,
        "max_connections": 200,
        "max_per_host": 8,
        "per_endpoint_concurrency": 6,
        "keepalive_expiry": 30.0,
        "max_connection_age": 120.0,
        "dns_ttl": 30.0,
        "max_response_head": 65_536,
        "max_response_body": 65_536,
        "max_interim_responses": 10,
        "follow_redirects": False,
        "redirect_limit": 3,
        "redirect_cross_origin": False,
        "require_complete_body": False,
    }
    assert sorted([*SECONDS, *COUNTS, *SWITCHES]) == sorted(FIELDS)
    ClientPolicy()  # warns of nothing


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", ["false", "no", 0, 1, None])
def test_a_switch_is_true_or_false(name: str, value: object) -> None:
    """ "false" is true in Python: require_complete_body="false" would turn deliveries that succeeded into failures."""
    with pytest.raises(ConfigurationError, match=f"{name}=.*write True or False"):
        policy(**{name: value})


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize(
    "value", [10**400, -1.0, -0.001, math.nan, math.inf, -math.inf, LONGEST + 1, "3", True, b"1", [1.0], 1j]
)
def test_a_limit_that_is_no_length_of_time_is_refused(name: str, value: object) -> None:
    """Infinity and None are how timeouts go missing; NaN compares false with everything and so never fires."""
    with pytest.raises(ConfigurationError, match=rf"{name}=.*write|{name}=.*positive"):
        policy(**{name: value})


@pytest.mark.parametrize("name", [name for name in SECONDS if name not in OPTIONAL])
def test_no_limit_can_be_switched_off_with_none(name: str) -> None:
    """None reads as "never" in most clients; here it means "not given", and only where something stands in for it."""
    with pytest.raises(ConfigurationError, match=f"{name}=None: write seconds"):
        policy(**{name: None})


@pytest.mark.parametrize("name", [*SECONDS, *COUNTS])
def test_zero_is_refused_except_where_it_means_something(name: str) -> None:
    """0 is "no timeout" to some libraries and "at once" to others."""
    if name in MAY_BE_ZERO:
        assert getattr(policy(**{name: 0}), name) == 0
    else:
        with pytest.raises(ConfigurationError, match=f"{name}=0"):
            policy(**{name: 0})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1, 1.0, math.nan, "8", None, True])
def test_a_count_is_a_whole_number(name: str, value: object) -> None:
    """8.0 would pass most comparisons and then break the one that matters."""
    with pytest.raises(ConfigurationError, match=f"{name}=.*whole number"):
        policy(**{name: value})


@given(strategies.sampled_from(SECONDS), strategies.floats(0.001, 1.0))
def test_any_sensible_limit_is_taken_as_it_is(name: str, value: float) -> None:
    """Nothing is rounded or clamped in silence."""
    assert getattr(policy(**{name: value}), name) == value


@pytest.mark.parametrize("name", ["dns_timeout", "tls_timeout"])
def test_a_part_of_the_connect_limit_may_only_tighten_it(name: str) -> None:
    """`connect_timeout` covers both; a longer part could never be reached and so lies."""
    assert getattr(policy(**{name: 3.0}), name) == 3.0
    with pytest.raises(ConfigurationError, match=rf"{name}=3.5 .*connect_timeout=3.0.*write {name}=3.0 or less"):
        policy(**{name: 3.5})


def test_a_host_cannot_have_more_connections_than_all_hosts() -> None:
    """One of the two numbers is a typing error; which one only the operator knows."""
    assert policy(max_connections=8, max_per_host=8).max_per_host == 8
    with pytest.raises(ConfigurationError, match="write max_per_host=4 or less, or raise max_connections"):
        policy(max_connections=4)


def test_a_connect_limit_over_a_third_of_the_read_limit_warns_and_says_what_to_write() -> None:
    """A dead host must be found out much sooner than a slow one, or both hold slots for as long."""
    ClientPolicy(connect_timeout=1.0, read_timeout=3.0)  # exactly a third does not
    with pytest.warns(UserWarning, match=r"connect_timeout=2.0 .* read_timeout=3.0.*write connect_timeout=1 or less"):
        ClientPolicy(connect_timeout=2.0, read_timeout=3.0)


def test_the_budget_is_the_total_or_the_sum_of_the_phases_it_covers() -> None:
    """Drain and part leases are planned with it. Admission and pool waits have limits of their own and are not in it."""
    assert ClientPolicy().attempt_budget == 18.0
    assert ClientPolicy(pool_timeout=60.0, admission_timeout=60.0).attempt_budget == 18.0
    assert ClientPolicy(total_timeout=7.0).attempt_budget == 7.0


def test_evolve_copies_checks_and_names_the_known_fields() -> None:
    """One spelling mistake in a limit must not leave the default in force."""
    base = ClientPolicy(read_timeout=20.0)
    changed = base.evolve(write_timeout=1.0)
    assert (changed.read_timeout, changed.write_timeout, base.write_timeout) == (20.0, 1.0, 5.0)
    with pytest.raises(TypeError, match=r"no field 'read_timout'; write one of connect_timeout, .*read_timeout"):
        base.evolve(read_timout=3.0)
    with pytest.raises(ConfigurationError, match="read_timeout=0"):
        base.evolve(read_timeout=0)
    assert base.evolve() == base
    assert hash(base.evolve()) == hash(base)


def test_a_policy_cannot_be_changed_nor_given_by_position() -> None:
    """It is shared by attempts in flight; and ClientPolicy(3, 5) would not say which limit is which."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        ClientPolicy().read_timeout = 1.0  # type: ignore[misc]  # misuse on purpose
    with pytest.raises(TypeError):
        ClientPolicy(3.0)  # type: ignore[call-arg]  # misuse on purpose


def test_explain_says_who_set_each_value_and_what_it_beat() -> None:
    """The first question in an incident is which limit was in force, and the second is why."""
    text = ClientPolicy(read_timeout=20.0, tls_timeout=2.0, max_per_host=8).explain()
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in text.splitlines()}
    assert list(rows) == list(FIELDS)
    assert rows["read_timeout"] == ["20.0", "given (beats built-in 10.0)"]
    assert rows["tls_timeout"] == ["2.0", "given (beats built-in None)"]
    assert rows["dns_timeout"] == ["3.0", "derived: connect_timeout"]
    assert rows["total_timeout"] == ["28.0", "derived: connect + write + read"]
    assert rows["write_timeout"] == ["5.0", "built-in"]
    assert rows["max_per_host"] == ["8", "built-in"]
    assert rows["follow_redirects"] == ["False", "built-in"]


def test_pool_fields_are_fields() -> None:
    """A misspelt one would let a call change the shared pool."""
    assert set(FIELDS) >= POOL_FIELDS


def test_fields_can_be_written_as_text() -> None:
    """`--policy read_timeout=3` and configuration go through here."""
    assert parse_field("read_timeout=3") == ("read_timeout", 3.0)
    assert parse_field("dns_timeout=0.5") == ("dns_timeout", 0.5)
    assert parse_field("max_per_host=2") == ("max_per_host", 2)
    assert parse_field("require_complete_body=true") == ("require_complete_body", True)
    for text, help_text in [
        ("read_timout=3", "FIELD=VALUE with a field of connect_timeout"),
        ("read_timeout", "FIELD=VALUE"),
        ("read_timeout=soon", "write seconds, for example read_timeout=10.0"),
        ("max_per_host=2.5", "write a whole number, for example max_per_host=8"),
        ("require_complete_body=yes", "write require_complete_body=true or require_complete_body=false"),
    ]:
        with pytest.raises(ConfigurationError, match=help_text):
            parse_field(text)
