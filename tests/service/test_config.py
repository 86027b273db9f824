"""Configuration is read once and refused as a whole; each refusal must say what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatepost.errors import ConfigurationError
from gatepost.service.config import Settings, load_settings
from gatepost.service.effective import (
    PHASE_LIMITS,
    check_bind,
    doubts,
    idle_memory,
    is_loopback,
    limit_rows,
    phase_limits,
)
from gatepost.service.settings_table import SETTINGS
from gatepost.wire.phases import Phase

FILES = 4_096


def load(tmp_path: Path, toml: str = "", environ: dict[str, str] | None = None, files: int = FILES) -> Settings:
    """Settings from a file with this text."""
    path = tmp_path / "gatepost.toml"
    path.write_text(toml)
    return load_settings(path, environ or {}, open_files=files)


def test_without_file_and_environment_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gatepost serve` in an empty directory must start."""
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {}, open_files=FILES)
    assert settings.database == "sqlite:///gatepost.db"
    assert settings.listen.host == "127.0.0.1"
    assert settings.slots == 2_048
    assert settings.policy.max_connections == 2_048
    assert settings.grace == settings.policy.attempt_budget


def test_the_limit_on_open_files_bounds_connections_and_slots(tmp_path: Path) -> None:
    """A socket needs a descriptor: asking for more than there are fails at the worst moment, under load."""
    settings = load(tmp_path, files=1_024)
    assert (settings.policy.max_connections, settings.slots) == (512, 512)
    many = load(tmp_path, files=1_000_000)
    assert (many.policy.max_connections, many.slots) == (16_384, 2_048)


def test_file_and_environment_meet_and_the_environment_wins(tmp_path: Path) -> None:
    """An operator must be able to say which of two values is in force, and why."""
    settings = load(
        tmp_path,
        '[policy]\nread_timeout = 20\nwrite_timeout = 4.5\n[egress]\nallow_cidrs = ["10.0.0.0/8"]\n',
        {"GATEPOST_POLICY_READ_TIMEOUT": "12", "GATEPOST_EGRESS_SCHEMES": "https, http", "GATEPOST_LISTEN_PORT": "0"},
    )
    assert settings.policy.read_timeout == 12.0
    assert settings.policy.write_timeout == 4.5
    assert settings.egress.schemes == ("https", "http")
    assert settings.egress.allow_cidrs == ("10.0.0.0/8",)
    assert settings.listen.port == 0
    rows = {row.name: row.source for row in limit_rows(settings)}
    assert "GATEPOST_POLICY_READ_TIMEOUT (beats" in rows["policy.read_timeout"]
    assert rows["policy.connect_timeout"] == "built-in"


@pytest.mark.parametrize(
    ("toml", "environ", "says"),
    [
        ("[policy]\nread_timout = 3\n", {}, "policy.read_timout is not a setting; write policy.read_timeout"),
        ("[policy]\nread-timeout = 3\n", {}, "write policy.read_timeout"),
        ("read_timeout = 3\n", {}, "write policy.read_timeout"),
        ("zzz = 3\n", {}, "the reference page on configuration lists all"),
        ("", {"GATEPOST_POLICY_READTIMEOUT": "3"}, "write GATEPOST_POLICY_READ_TIMEOUT"),
        ("", {"gatepost_database": "x"}, "write GATEPOST_DATABASE"),
        ("[policy]\nread_timeout = 'soon'\n", {}, "'soon' is not seconds; write a number, for example 10.0"),
        ("[policy]\nread_timeout = true\n", {}, "True is not seconds"),
        ("", {"GATEPOST_POLICY_READ_TIMEOUT": ""}, "'' is not a number"),
        ("", {"GATEPOST_POLICY_READ_TIMEOUT": "never"}, "'never' is not a number"),
        ("[policy]\nread_timeout = 0\n", {}, "there is no 'never'"),
        ("[policy]\nread_timeout = inf\n", {}, "write at most 86400"),
        ("[policy]\nmax_per_host = 2.5\n", {}, "2.5 is not a whole number"),
        ("[policy]\nfollow_redirects = 1\n", {}, "write true or false"),
        ("", {"GATEPOST_POLICY_FOLLOW_REDIRECTS": "yes"}, "write true or false"),
        ("[policy]\ntls_timeout = 5.0\n", {}, "longer than connect_timeout"),
        ("[policy]\nmax_connections = 4\n", {}, "dispatch.slots"),
        ("[policy]\nmax_connections = 3000\n", {}, "write 2048 or less, or start with `ulimit -n 6000`"),
        ("[dispatch]\nslots = 4000\n", {}, "write dispatch.slots=2048 or less"),
        ("[dispatch]\nslots = 0\n", {}, "write a number above 0"),
        ("[dispatch]\nshutdown_grace = -1.0\n", {}, "write a number above 0"),
        ("[retention]\nevents = 3600.0\n", {}, "write 432000 or more"),
        ("[retention]\nidempotency = 2_000_000.0\n", {}, "write 604800 or less"),
        ("[egress]\nports = 'strict'\n", {}, 'write "default" or a list of ports'),
        ("", {"GATEPOST_EGRESS_PORTS": "443,x"}, "'x' is not a number"),
        ("[egress]\nallow_cidrs = '10.0.0.0/8'\n", {}, "write a list of texts"),
        ("[egress]\nallow_cidrs = ['10.0.0.1/8']\n", {}, "10.0.0.1/8"),
        ("[listen]\nport = 70000\n", {}, "write 1 to 65535"),
        ("[listen]\nhost = ''\n", {}, "is not a text"),
        ("[log]\nformat = 'xml'\n", {}, "'xml' is not one of auto, json, console"),
        ("[metrics]\nhosts = 0\n", {}, "write a number above 0"),
        ("[security]\nadmin_key = 'short'\n", {}, "at least 24 visible ASCII characters"),
        ("[security]\nkeys = []\n", {}, "write at least one key"),
        ("[security]\nadmin_key_file = '/nowhere/key'\n", {}, "cannot be read"),
        (
            "[security]\nadmin_key_file = '/nowhere/key'\n",
            {"GATEPOST_SECURITY_ADMIN_KEY": "k" * 32},
            "both given; leave one out",
        ),
        ("policy = \n", {}, "not valid TOML"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_write(
    tmp_path: Path, toml: str, environ: dict[str, str], says: str
) -> None:
    """A message that names the fault but not the remedy costs someone an evening."""
    if "max_connections = 4" in toml:
        toml += "[dispatch]\nslots = 8\n"
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, toml, environ)
    assert says in str(caught.value)
    assert "k" * 32 not in str(caught.value)


def test_all_spelling_errors_are_reported_at_once(tmp_path: Path) -> None:
    """Five restarts to find five typing errors are four too many."""
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, "[policy]\nread_timout = 3\nwrite_timeot = 3\n", {"GATEPOST_DATABSE": "x"})
    assert len(str(caught.value).splitlines()) == 3


def test_a_missing_file_is_refused_only_when_it_was_named(tmp_path: Path) -> None:
    """A misspelt --config must not silently mean "defaults"."""
    with pytest.raises(ConfigurationError, match="no such file"):
        load_settings(tmp_path / "other.toml", {}, open_files=FILES)


def test_what_kubernetes_and_the_command_line_put_into_the_environment_is_no_setting(tmp_path: Path) -> None:
    """A Service named `gatepost` puts GATEPOST_PORT=tcp://… into every container of its namespace."""
    environ = {
        "GATEPOST_PORT": "tcp://10.0.0.1:80",
        "GATEPOST_PORT_80_TCP": "tcp://10.0.0.1:80",
        "GATEPOST_PORT_80_TCP_ADDR": "10.0.0.1",
        "GATEPOST_SERVICE_HOST": "10.0.0.1",
        "GATEPOST_SERVICE_PORT_HTTP": "80",
        "GATEPOST_URL": "http://127.0.0.1:1",
        "GATEPOST_API_KEY": "secret",
    }
    assert load(tmp_path, "", environ).listen.port == 8_080
    with pytest.raises(ConfigurationError, match="GATEPOST_PORT is not a setting"):
        load(tmp_path, "", {"GATEPOST_PORT": "9000"})


def test_secrets_come_from_files_and_show_nowhere(tmp_path: Path) -> None:
    """Orchestrators mount secrets as files; a settings object ends up in tracebacks."""
    (tmp_path / "admin").write_text("k" * 40 + "\n")
    (tmp_path / "keys").write_text("two:AAAA\none:BBBB\n")
    settings = load(tmp_path, f"[security]\nadmin_key_file = '{tmp_path}/admin'\nkeys_file = '{tmp_path}/keys'\n")
    assert settings.admin_key is not None
    assert settings.admin_key.reveal() == "k" * 40
    assert [key.reveal() for key in settings.keys] == ["two:AAAA", "one:BBBB"]
    assert "kkkk" not in repr(settings)
    assert "AAAA" not in repr(settings)


def test_every_phase_has_a_limit_and_a_setting_that_gives_it() -> None:
    """The seed's checklist: print the effective limits at start, and assert that none is missing."""
    limits = phase_limits(Settings().policy)
    assert set(limits) == set(Phase) == set(PHASE_LIMITS)
    assert all(seconds > 0 for seconds in limits.values())


def test_a_tighter_phase_limit_is_the_one_in_force() -> None:
    """`dns_timeout` may only tighten the set-up budget; the table must show it, not the budget."""
    policy = Settings().policy.evolve(dns_timeout=0.5)
    assert phase_limits(policy)[Phase.DNS] == 0.5
    assert phase_limits(policy)[Phase.CONNECT] == policy.connect_timeout


def test_the_memory_of_idle_connections_is_said() -> None:
    """16,384 connections sound cheap until someone multiplies."""
    assert "up to 8 MiB (43 KiB for each" in idle_memory(Settings())


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("gatepost.internal", False),
    ],
)
def test_only_loopback_is_served_without_keys(host: str, inside: bool) -> None:
    """An API that anyone may call must not be where anyone reaches it."""
    assert is_loopback(host) is inside
    check_bind(host, has_keys=True)
    if inside:
        check_bind(host, has_keys=False)
    else:
        with pytest.raises(ConfigurationError, match=r"set security\.admin_key"):
            check_bind(host, has_keys=False)


def test_what_is_possible_but_not_meant_is_said(tmp_path: Path) -> None:
    """A short grace turns every restart into duplicates; a long connect limit makes a dead host as dear as a slow one."""
    assert doubts(Settings()) == []
    (short,) = doubts(Settings(shutdown_grace=2.0))
    assert "write 18.0 or more" in short
    (slow,) = doubts(load(tmp_path, "[policy]\nconnect_timeout = 5.0\n"))
    assert "over a third of read_timeout" in slow


def test_every_setting_has_one_name_in_each_source() -> None:
    """Two names for one thing is how two values for one thing begin."""
    assert len({setting.path for setting in SETTINGS}) == len(SETTINGS)
    assert len({setting.env for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.help for setting in SETTINGS)


def test_an_egress_proxy_is_configured_whole_or_not_at_all(tmp_path: Path) -> None:
    """Attempts that leave around the proxy leave around the filter."""
    assert load(tmp_path).proxy is None
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    settings = load(
        tmp_path,
        f'[proxy]\nurl = "http://proxy.internal:3128"\nusername = "gatepost"\npassword_file = "{password}"\n'
        'no_proxy = [".corp.example.com", "10.0.0.0/8"]\n',
    )
    assert settings.proxy is not None
    assert (settings.proxy.host, settings.proxy.port, settings.proxy.password) == ("proxy.internal", 3128, "hunter2")
    assert settings.proxy.no_proxy == (".corp.example.com", "10.0.0.0/8")
    assert "hunter2" not in repr(settings)
    for toml, says in (
        ('[proxy]\nusername = "gatepost"\n', "without proxy.url"),
        ('[proxy]\nurl = "socks5://proxy:1080"\n', "socks5 is not offered"),
        (f'[proxy]\nurl = "http://p:1"\npassword = "a"\npassword_file = "{password}"\n', "both given"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            load(tmp_path, toml)
