"""The command line: what it prints for people and programs, and its three exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gatepost.service.cli.api_client import ApiClient
from gatepost.service.cli.root import app
from gatepost.service.cli.root import run as run_command
from gatepost.testing.receiver_process import ReceiverProcess
from tests.service.served import PATIENCE, Served, served

CASES = Path(__file__).parents[1] / "data" / "egress.json"
LOOPBACK = ("--allow-http", "--allow-cidr", "127.0.0.0/8")


def run(*arguments: str, stdin: str | None = None) -> Result:
    """One command, in this process."""
    return CliRunner().invoke(app, list(arguments), input=stdin)


def lines_of(result: Result, code: int = 0) -> list[Any]:
    """The JSON lines a command printed."""
    assert result.exit_code == code, result.output
    assert result.stdout.isascii()
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_egress_check_answers_the_whole_corpus_line_by_line() -> None:
    """The fixed contract that outside checks rely on: cases in, verdicts out, in order."""
    cases = [case for case in json.loads(CASES.read_text())["cases"] if case["stage"] in ("url", "dns")]
    fields = ("url", "host", "dns_answers", "dns_sequence", "cname_chain", "policy")
    stdin = "".join(json.dumps({name: case[name] for name in fields if name in case}) + "\n" for case in cases)
    verdicts = lines_of(run("egress", "check", "--jsonl", stdin=stdin))
    assert len(verdicts) == len(cases) > 250
    for case, verdict in zip(cases, verdicts, strict=True):
        assert verdict == {"verdict": case["expect"], "reason": case["reason_code"]}, case["id"]


@pytest.mark.parametrize(
    ("arguments", "code", "verdict"),
    [
        (("https://hooks.example.com/in",), 0, ("allow", "ok")),
        (("https://hooks.example.com/", "--answers", "93.184.216.34"), 0, ("allow", "ok")),
        (("https://hooks.example.com/", "--answers", "93.184.216.34,10.0.0.1"), 1, ("deny", "dns_mixed_answers")),
        (("https://hooks.example.com/", "--answers", ""), 1, ("deny", "dns_no_address")),
        (("http://hooks.example.com/",), 1, ("deny", "scheme_not_allowed")),
        (("http://127.0.0.1:8080/", *LOOPBACK), 0, ("allow", "ok")),
        (("https://localhost/", "--resolve", "--allow-cidr", "127.0.0.0/8"), 1, ("deny", "host_special_use")),
    ],
)
def test_egress_check_of_one_url(arguments: tuple[str, ...], code: int, verdict: tuple[str, str]) -> None:
    """0 allowed, 1 denied; the text names the rule and the remedy."""
    (answer,) = lines_of(run("egress", "check", *arguments, "--json"), code)
    assert (answer["verdict"], answer["reason"]) == verdict
    plain = run("egress", "check", *arguments)
    assert plain.exit_code == code
    assert plain.stdout.startswith(f"{verdict[0]} ({verdict[1]})")


def test_egress_check_misuse_exits_2_and_keeps_the_order_of_lines() -> None:
    """A pipeline that pairs input and output by line number must not slip by one."""
    result = run("egress", "check", "--jsonl", stdin='nonsense\n{"url": "https://a.example.com/"}\n{"port": 1}\n[]\n')
    first, second, third, fourth = lines_of(result, 2)
    assert "error" in first
    assert second == {"verdict": "allow", "reason": "ok"}
    assert "error" in third
    assert "error" in fourth
    assert run("egress", "check").exit_code == 2
    assert run("egress", "check", "https://a.example.com/", "--jsonl").exit_code == 2


@pytest.fixture(scope="module")
def receiver() -> Iterator[ReceiverProcess]:
    """A good receiver in a process of its own."""
    with ReceiverProcess() as process:
        yield process


def test_send_prints_the_attempt_and_exits_by_delivery(receiver: ReceiverProcess, tmp_path: Path) -> None:
    """The first command anyone tries: it must say in which phase and why."""
    body = tmp_path / "body.json"
    body.write_text('{"a": 1}')
    url = receiver.urls[0]
    (attempt,) = lines_of(run("send", f"{url}/ok", "--data", f"@{body}", *LOOPBACK, "--json"))
    assert (attempt["outcome"], attempt["delivered"], attempt["status"]) == ("response", True, 200)
    assert attempt["bytes_sent"] > len('{"a": 1}')
    assert attempt["phases"]["wait"] > 0
    (attempt,) = lines_of(run("send", f"{url}/status/503", *LOOPBACK, "--json"), 1)
    assert (attempt["status"], attempt["retry_safety"]) == (503, "safe")
    limits = ("--policy", "read_timeout=0.9", "--policy", "connect_timeout=0.3")
    (attempt,) = lines_of(run("send", f"{url}/slow/5", *LOOPBACK, *limits, "--json"), 1)
    assert (attempt["outcome"], attempt["phase"], attempt["retry_safety"]) == ("read_timeout", "wait", "ambiguous")
    plain = run("send", f"{url}/ok", *LOOPBACK)
    assert plain.exit_code == 0
    assert "delivered" in plain.stdout


def test_send_refuses_before_sending_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1 is "not delivered"; a typing error is 2 and names the fields there are."""
    (attempt,) = lines_of(run("send", "https://10.0.0.7/", "--json"), 1)
    assert (attempt["outcome"], attempt["reason"]) == ("egress_denied", "addr_private")
    for arguments in (
        ("--policy", "read_timout=3"),
        ("--policy", "read_timeout=-1"),
        ("--header", "no colon"),
        ("--header", "Host: x"),
        ("--data", "@/nowhere/file"),
        ("--secret", "short"),
        ("--allow-cidr", "nonsense"),
    ):
        with pytest.raises(SystemExit) as ended:
            run_command(["send", "https://hooks.example.com/", *arguments])
        assert ended.value.code == 2, arguments
        assert "gatepost: " in capsys.readouterr().err


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running service for the commands that talk to one."""
    with served(tmp_path_factory.mktemp("service")) as process:
        yield process


def ask(service: Served, *arguments: str, code: int = 0) -> list[Any]:
    """The JSON lines of a command against the service."""
    return lines_of(run(*arguments, "--url", service.url, "--json"), code)


def until(service: Served, *arguments: str, holds: Callable[[list[Any]], bool]) -> list[Any]:
    """The command's answer once it is as expected."""
    give_up = time.monotonic() + PATIENCE
    while not holds(answer := ask(service, *arguments)):
        assert time.monotonic() < give_up, answer
        time.sleep(0.02)
    return answer


def test_the_commands_cover_an_endpoints_life(service: Served, receiver: ReceiverProcess) -> None:
    """Everything the README does with curl must work without it."""
    (endpoint,) = ask(
        service,
        *("endpoint", "create", f"{receiver.urls[0]}/ok", "--type", "cli.*", "--header", "X-A: b"),
        *("--limit", "read_timeout=1.9", "--status-rule", "404=final", "--schedule", "0,1"),
    )
    name = endpoint["id"]
    assert endpoint["secret"].startswith("whsec_")
    (tested,) = ask(service, "endpoint", "test", name)
    assert tested["delivered"] is True
    (receipt,) = ask(service, "publish", "cli.test", "--data", '{"exact":  1}')
    assert receipt["deliveries"] == 1
    listing = ("deliveries", "list", "--event", receipt["event_id"])
    (delivery,) = until(service, *listing, holds=lambda items: items[0]["state"] == "delivered")
    (attempt,) = ask(service, "deliveries", "attempts", delivery["id"])
    assert attempt["status"] == 200
    assert ask(service, "deliveries", "show", delivery["id"])[0]["attempts"] == 1
    ask(service, "endpoint", "pause", name)
    (waiting,) = ask(service, "publish", "cli.test", "--data", "not json at all")
    assert ask(service, "deliveries", "cancel", "--event", waiting["event_id"]) == [{"cancelled": 1}]
    ask(service, "endpoint", "resume", name)
    (changed,) = ask(service, "endpoint", "update", name, "--description", "by hand")
    assert changed["description"] == "by hand"
    (rotated,) = ask(service, "endpoint", "rotate", name, "--overlap", "5")
    assert rotated["secret"] != endpoint["secret"]
    assert name in {item["id"] for item in ask(service, "endpoint", "list")}
    assert run("endpoint", "delete", name, "--url", service.url).exit_code == 0
    assert run("endpoint", "show", name, "--url", service.url).exit_code == 1


def test_dead_letters_are_exported_page_by_page_and_an_export_goes_on_where_it_broke_off(
    service: Served, receiver: ReceiverProcess, tmp_path: Path
) -> None:
    """A line for each, with what would have been sent as text where it is one; more letters than a page holds."""
    (endpoint,) = ask(
        service, "endpoint", "create", f"{receiver.urls[0]}/status/413", "--type", "export.*", "--schedule", "0"
    )
    for number in range(45):
        ask(service, "publish", "export.test", "--data", json.dumps({"n": number, "text": "ü"}))
    listing = ("dead", "list", "--endpoint", endpoint["id"])
    until(service, *listing, holds=lambda items: len(items) == 45)
    everything = lines_of(run("dead", "export", "--url", service.url, "--endpoint", endpoint["id"]))
    assert sorted(json.loads(line["payload"])["n"] for line in everything) == list(range(45))
    assert {line["why"] for line in everything} == {"refused"}
    # As if the first export had ended after its first page.
    query = {"endpoint_id": endpoint["id"], "payload": "true", "limit": 100}
    first = ApiClient(service.url, None).call("GET", "/v1/dead-letters", query=query)
    assert len(first["items"]) == 20
    out = tmp_path / "dead.jsonl"
    arguments = ("dead", "export", "--url", service.url, "--endpoint", endpoint["id"], "--out", str(out))
    assert run(*arguments, "--after", first["next"]).exit_code == 0
    rest = [json.loads(line) for line in out.read_text("ascii").splitlines()]
    assert rest == everything[20:]
    died = everything[10]["died_at"]
    assert len(ask(service, *listing, "--before", died)) + len(ask(service, *listing, "--from", died)) == 45
    count = ApiClient(service.url, None).call
    selection = {"endpoint_id": endpoint["id"]}
    assert count("GET", "/v1/dead-letters:count", query=selection) == {"count": 45, "complete": True}
    assert count("GET", "/v1/dead-letters:count", query={**selection, "at_most": 7}) == {"count": 7, "complete": False}
    shown = on_terminal("dead", "replay", "--endpoint", endpoint["id"], "--rate", "1000", "--url", service.url)
    assert "45/45" in shown
    assert "/s" in shown, "and how fast it goes"


def on_terminal(*arguments: str) -> str:
    """What a command shows on standard error where that is a terminal."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, "-m", "gatepost.service.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4_096)
            except OSError:  # Linux says so when the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    assert process.returncode == 0
    return shown.decode()


def test_dead_letters_are_listed_replayed_and_purged(service: Served, receiver: ReceiverProcess) -> None:
    """At 3 a.m. this is the command that matters."""
    (endpoint,) = ask(
        service, "endpoint", "create", f"{receiver.urls[0]}/status/500", "--type", "dead.*", "--schedule", "0"
    )
    ask(service, "publish", "dead.test")
    listing = ("dead", "list", "--endpoint", endpoint["id"])
    letters = until(service, *listing, holds=bool)
    assert letters[0]["status"] == 500
    assert ask(service, "dead", "replay", "--endpoint", endpoint["id"]) == [{"replayed": 1}]
    until(service, *listing, holds=bool)
    assert ask(service, "dead", "purge", "--endpoint", endpoint["id"]) == [{"purged": 1}]
    assert run("dead", "purge", "--url", service.url).exit_code == 2
    assert run("dead", "export", "--url", service.url, "--from", "yesterday").exit_code == 2
    assert run("dead", "replay", "--url", service.url).exit_code == 2


def test_publishing_straight_into_the_database_reaches_the_dispatcher(
    service: Served, receiver: ReceiverProcess
) -> None:
    """Cron jobs on the same machine publish without HTTP, from their own process."""
    (endpoint,) = ask(service, "endpoint", "create", f"{receiver.urls[0]}/outbox", "--type", "outbox.*")
    (receipt,) = lines_of(run("publish", "outbox.test", "--db", service.database, "--json"))
    assert receipt["deliveries"] is None
    listing = ("deliveries", "list", "--endpoint", endpoint["id"])
    deliveries = until(service, *listing, holds=lambda items: [item["state"] for item in items] == ["delivered"])
    assert deliveries[0]["event_id"] == receipt["event_id"]


def test_many_events_are_published_a_line_each_in_order(service: Served) -> None:
    """Backfills come as files; the answer to line n must be line n, refusals included."""
    lines = [json.dumps({"type": "many", "payload": number}) for number in range(600)]
    lines.insert(3, json.dumps({"type": "no good!", "payload": 1}))
    result = run("publish", "--jsonl", "--url", service.url, stdin="\n".join(lines) + "\n\n")
    answers = lines_of(result, 1)
    assert len(answers) == 601
    assert [number for number, answer in enumerate(answers) if "code" in answer] == [3]
    assert answers[3]["code"] == "invalid_request"
    assert run("publish", "--jsonl", "--url", service.url, stdin="{not json\n").exit_code == 2
    assert run("publish", "--jsonl", "a.type").exit_code == 2
    assert run("publish").exit_code == 2


def test_tenants_and_keys_are_managed(tmp_path: Path) -> None:
    """From the first admin key on, without writing a line of HTTP."""
    admin = "admin-key-for-the-command-line"
    with served(tmp_path, GATEPOST_SECURITY_ADMIN_KEY=admin) as process:

        def call(*arguments: str, key: str = admin, code: int = 0) -> list[Any]:
            return lines_of(run(*arguments, "--url", process.url, "--api-key", key, "--json"), code)

        call("tenant", "create", "acme", "--endpoints", "1")
        (made,) = call("key", "create", "billing", "--tenant", "acme")
        mine = made["key"]
        create = (
            "endpoint",
            "create",
            "https://hooks.example.com/",
            "--no-probe",
            "--url",
            process.url,
            "--api-key",
            mine,
        )
        assert run(*create).exit_code == 0
        give_up = time.monotonic() + PATIENCE
        while (refused := run(*create)).exit_code == 0:  # a limit is followed within two seconds
            assert time.monotonic() < give_up
            time.sleep(0.1)
        assert (refused.exit_code, "rate_limited" in refused.stderr) == (1, True)
        assert [item["name"] for item in call("tenant", "list")] == ["acme"]
        (changed,) = call("tenant", "limit", "acme", "--events-per-second", "5")
        assert (changed["limits"]["endpoints"], changed["limits"]["events_per_second"]) == (None, 5.0)
        assert run("tenant", "list", "--url", process.url, "--api-key", mine).exit_code == 1
        (link,) = call("portal", "link", "--tenant", "acme", "--expires", "30m", key=mine)
        assert link["url"].startswith(f"{process.url}/console/portal?token=")
        assert link["revoked_with"] == made["id"]
        bad = run("portal", "link", "--tenant", "acme", "--expires", "soon", "--url", process.url, "--api-key", mine)
        assert (bad.exit_code, "30m or 1h" in bad.stderr) == (2, True)
        assert {item["tenant"] for item in call("key", "list")} == {None, "acme"}
        assert run("key", "delete", made["id"], "--url", process.url, "--api-key", admin).exit_code == 0
        assert run("endpoint", "list", "--url", process.url, "--api-key", mine).exit_code == 2


def test_a_service_that_is_not_there_is_said_in_one_line() -> None:
    """The commonest mistake deserves the clearest answer."""
    result = run("endpoint", "list", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "start it with `gatepost serve`" in result.stderr
    assert run("endpoint", "list", "--url", "nonsense").exit_code == 2


def test_policy_commands_say_who_set_what(tmp_path: Path) -> None:
    """ "Why is it 12 seconds" must have an answer without reading code."""
    config = tmp_path / "gatepost.toml"
    config.write_text("[policy]\nread_timeout = 12\n")
    (shown,) = lines_of(run("policy", "show", "--config", str(config), "--json"))
    assert shown["policy.read_timeout"] == 12.0
    assert shown["phase wait"] == 12.0
    (explained,) = lines_of(run("policy", "explain", "--config", str(config), "--json"))
    (row,) = (row for row in explained if row["limit"] == "policy.read_timeout")
    assert "beats built-in 10.0" in row["source"]
    assert str(config) in row["source"]


def test_limits_are_changed_while_everything_runs(service: Served) -> None:
    """Set, explained with who and why, refused with the arithmetic, taken back, and all of it in the history."""
    (endpoint,) = ask(service, "endpoint", "create", "https://hooks.example.com/", "--no-probe", "--json")
    (change,) = ask(
        service, "policy", "set", "read_timeout=8", "read_timeout.ceiling=12", "--why", "slow is over", "--json"
    )
    (explained,) = ask(service, "policy", "explain", endpoint["id"], "--json")
    row = next(one for one in explained["limits"] if one["limit"] == "read_timeout")
    assert (row["value"], row["set_by"], row["why"], row["ceiling"]) == (8.0, "fleet", "slow is over", 12.0)
    text = run("policy", "explain", endpoint["id"], "--url", service.url).stdout
    assert "(slow is over) beats process 2.0, built_in 10.0 learned within 3 to 12" in text
    (fleet,) = ask(service, "status", "--json")
    name = fleet["nodes"][0]["name"]
    (process,) = ask(service, "policy", "show", "--process", name, "--json")
    assert (process["process"], process["version"]) == (name, change["version"])
    assert run("policy", "show", "--process", "nobody", "--url", service.url).exit_code == 2
    refused = run("policy", "set", "max_connections=3", "--why", "x", "--url", service.url)
    assert refused.exit_code == 2
    assert "belongs to each process" in refused.stderr
    (layers,) = ask(service, "policy", "show", "--layers", "--json")
    assert [one["limit"] for one in layers["fleet"]] == ["read_timeout"]
    ask(service, "policy", "rollback", "--why", "too tight", "--json")
    (explained,) = ask(service, "policy", "explain", endpoint["id"], "--json")
    assert next(one for one in explained["limits"] if one["limit"] == "read_timeout")["set_by"] != "fleet"
    ask(service, "policy", "set", "write_timeout=4", "--why", "x", "--json")
    ask(service, "policy", "clear", "--why", "y", "--json")
    history = ask(service, "policy", "history", "--json")
    assert [one["why"] for one in history] == ["y", "x", "too tight", "slow is over"]


def test_a_change_is_tried_in_shadow_and_rolled_out(service: Served, receiver: ReceiverProcess) -> None:
    """Tried, reported, spared, started, looked at, pushed on, taken back for one endpoint, ended."""
    (endpoint,) = ask(
        service, "endpoint", "create", f"{receiver.urls[0]}/slow/0.4", "--tier", "third_party", "--type", "shadow.*"
    )
    assert endpoint["tier"] == "third_party"
    ask(service, "policy", "shadow", "set", "read_timeout=0.2", "--why", "tighten")
    for _ in range(25):
        ask(service, "publish", "shadow.test", "--data", "{}")
    delivered = ("deliveries", "list", "--endpoint", endpoint["id"])
    until(service, *delivered, holds=lambda items: {item["state"] for item in items} == {"delivered"})
    assert ask(service, "policy", "shadow", "report", code=1)[0]["lost"] == 25
    (report,) = ask(service, "policy", "shadow", "report", "--apply", "--why", "spare the slow")
    assert report["endpoints"][0]["endpoint_id"] == endpoint["id"]
    assert report["applied"]["endpoints"] == 1
    (explained,) = ask(service, "policy", "explain", endpoint["id"])
    row = next(one for one in explained["limits"] if one["limit"] == "read_timeout")
    assert (row["set_by"], row["value"]) == ("endpoint", pytest.approx(1.2, rel=0.4))
    assert "gatepost_shadow_would_trip_total{" in ApiClient(service.url, None).text("/metrics")
    assert run("policy", "shadow", "report", "--apply", "--url", service.url).exit_code == 2
    ask(service, "policy", "shadow", "clear", "--why", "seen")
    assert ask(service, "rollout", "status", code=1)[0]["rollout"] is None
    ask(service, "rollout", "start", "write_timeout=0.9", "--why", "tighten", "--shares", "0.5", "--night", "none")
    (status,) = ask(service, "rollout", "status")
    assert (status["rollout"]["stage"], "judged" in status["waits_for"]) == ("shadow", True)
    assert "stage" in run("rollout", "status", "--url", service.url).stdout
    ask(service, "rollout", "advance", "--why", "one process only")
    (status,) = ask(service, "rollout", "status")
    assert (status["rollout"]["stage"], status["rollout"]["share"]) == ("cohort", 0.5)
    assert status["verdict"]["finding"] == "inconclusive"
    ask(service, "rollout", "advance", "--why", "to all")
    (taken,) = ask(service, "policy", "rollback", "--endpoint", endpoint["id"], "--why", "this one not")
    assert taken["overrides"] == {"write_timeout": 5.0}  # its tier's, which the rollout beat
    ask(service, "rollout", "abort", "--why", "enough")
    assert ask(service, "rollout", "status", code=1)[0]["rollout"]["stage"] == "aborted"
    (review,) = ask(service, "policy", "review", "--all")
    assert review["items"][0]["limits"]
    assert run("policy", "review", "--all", "--url", service.url).exit_code == 0
    assert (
        run("rollout", "start", "write_timeout=1", "--why", "x", "--shares", "a", "--url", service.url).exit_code == 2
    )


def test_hostile_behaviours_are_listed_and_run() -> None:
    """`gatepost hostile` is for users who test clients of their own."""
    (behaviours,) = lines_of(run("hostile", "list", "--json"))
    assert {"silence", "drip-body", "early-413-close"} <= {one["name"] for one in behaviours}
    process = subprocess.Popen(
        [sys.executable, "-m", "gatepost.service.cli", "hostile", "run", "ok", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        url = json.loads(process.stdout.readline())["url"]
        (attempt,) = lines_of(run("send", url, *LOOPBACK, "--json"))
        assert attempt["delivered"] is True
        process.terminate()
    assert process.returncode == 0


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    """`pip install gatepost` puts the script on the path; it must not answer with a traceback."""
    block = tmp_path / "block.py"
    block.write_text(
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('typer', 'rich', 'fastapi', 'uvicorn'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from gatepost.service.cli import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, str(block)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 2
    assert "pip install 'gatepost[server]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_help_and_version_answer() -> None:
    """Every command must at least explain itself."""
    for command in ("serve", "demo", "send", "publish", "endpoint", "deliveries", "dead", "egress", "policy", "bench"):
        assert run(command, "--help").exit_code == 0, command
    assert run("--version").stdout.startswith("gatepost ")
    assert run("nonsense").exit_code == 2
