"""Fault cases of class secrets, as one scan: every way to fail, with canary secrets, and none of them anywhere afterwards."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import sqlite3
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner

from gatepost import Dispatcher
from gatepost.delivery.ids import DELIVERY, encode_id
from gatepost.delivery.outcome import Outcome
from gatepost.delivery.policy import ClientPolicy
from gatepost.delivery.records import Secret
from gatepost.errors import ConfigurationError
from gatepost.net.client import DispatchClient
from gatepost.net.proxy import ProxyConfig
from gatepost.net.tls import TLSProfile
from gatepost.service.cli.root import app
from gatepost.service.config import load_settings
from gatepost.service.logs import LogObserver, Logs
from gatepost.service.metrics import Metrics
from gatepost.service.observers import Observers
from gatepost.store.rows import DeadFilter, DeliveryFilter
from gatepost.testing.hostile import BEHAVIOURS, HostileServer, TLSUse
from gatepost.wire.egress import Denied, EgressPolicy, check_url
from gatepost.wire.signing import Signer, sign
from tests.faults.canaries import (
    API_KEY,
    HEADERS,
    PATH,
    SIGNING_SECRET,
    STORE_KEY,
    USERINFO,
    WORD,
    Haystack,
    client_certificate,
)
from tests.faults.kit import Heard, ScriptedResolver, closed_port, not_found
from tests.faults.test_proxy import REFUSALS, answers_connect
from tests.hostile.engine import BIG, LOOPBACK, SMALL, Certificates, limits
from tests.service.running import api, ok

LARGE_BODIES = frozenset({"never-reads", "slow-read", "close-mid-request", "reset-mid-request"})
FORBIDDEN_URLS = [
    f"https://{USERINFO}hook.example.com/{PATH}",
    f"https://user:{WORD}/x@hook.example.com/",
    f"https://hook.example.com:{WORD}/",
    f"https://127.0.0.1/{PATH}",
    f"https://10.0.0.7/{PATH}#{WORD}",
    f"ftp://hook.example.com/{PATH}",
    f"https://hook.example.com/{PATH} {WORD}",
    f"https://hook.example.com/{PATH}\n{WORD}",
    f"https://hook.example.com/\u00fc{WORD}",
    f"https://hook.example.com\\{WORD}",
    f"https://hook.example.com/{'x' * 3_000}{WORD}",
    f"//hook.example.com/{PATH}",
    f"http://localhost/{PATH}",
]
"""Each is refused; what may be a password, a path or a query must not be part of the refusal."""
BAD_HEADERS: list[Mapping[str, str]] = [
    {"X-Token": f"{WORD}\r\nX-Evil: {WORD}"},
    {"X-Token": f"{WORD}\u00e9"},
    {"X-Token": WORD * 500},
    {f"X-Token: {WORD}": "1"},
    {"Host": WORD},
    {"X-Token": WORD, "x-token": WORD},
]


def pem(value: str | bytes | None) -> str:
    """As text."""
    assert value is not None
    return value if isinstance(value, str) else value.decode()


def show(where: str, what: object, hay: Haystack) -> None:
    """Everything a public object says of itself, and that it does not say more when pickled or taken apart."""
    hay.add(where, what)
    if is_dataclass(what):
        for part in fields(what):
            if part.repr:
                hay.add(f"{where}.{part.name}", repr(getattr(what, part.name)))


async def test_secrets_01_no_way_to_fail_shows_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every hostile behaviour, every TLS fault, names that fail, refused URLs and headers: log, metrics, reprs, statistics."""
    caplog.set_level(0)
    hay = Haystack()
    certificates = Certificates.make()
    profile, key_line = client_certificate()
    profile = TLSProfile(
        ca_pem=certificates.profile.ca_pem,
        client_cert_pem=profile.client_cert_pem,
        client_key_pem=profile.client_key_pem,
    )
    heard = Heard()
    metrics = Metrics()
    headers = {**HEADERS, **sign("evt_1", 1, SMALL, [SIGNING_SECRET])}
    del headers["webhook-signature"]  # a signature is no secret, but its digits are nothing a scan can tell apart
    with (tmp_path / "log").open("w") as stream:
        logs = Logs("json", stream=stream, level="debug")
        logs.take_over()
        observer = Observers(heard, metrics, LogObserver(logs, with_decisions=False))
        policy = limits(max_connections=500, connect_timeout=1.0, read_timeout=0.4)
        resolver = ScriptedResolver(not_found("dns_no_address", temporary=False))
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                DispatchClient(policy, egress=LOOPBACK, resolver=resolver, observer=observer)
            )
            wrong = certificates.server("other.example.com")
            urls: list[tuple[str, bytes, TLSProfile | None]] = []
            for name, behaviour in BEHAVIOURS.items():
                contexts: list[ssl.SSLContext | None] = [None]
                if behaviour.tls is TLSUse.REQUIRED:
                    contexts = [certificates.server("127.0.0.1"), wrong]
                elif behaviour.tls is TLSUse.OPTIONAL and behaviour.accepts and name not in LARGE_BODIES:
                    contexts = [None, certificates.server("127.0.0.1")]
                for context in contexts:
                    server = await stack.enter_async_context(HostileServer(behaviour, tls_context=context))
                    payload = BIG[:4_000_000] if name in LARGE_BODIES else SMALL
                    urls.append((server.url + PATH, payload, profile if server.url.startswith("https") else None))
            urls.append((f"http://127.0.0.1:{closed_port()}/{PATH}", SMALL, None))
            urls.append((f"http://none.example.com/{PATH}", SMALL, None))
            urls += [(url, SMALL, None) for url in FORBIDDEN_URLS]
            tasks = [
                asyncio.create_task(
                    client.deliver(url, payload, headers, tls=tls, endpoint_id=f"ep_{number}", tenant="t")
                )
                for number, (url, payload, tls) in enumerate(urls)
            ]
            await asyncio.sleep(0.1)
            for flight in list(client.flights):
                hay.add("flight", flight)
            for host in client.pool.hosts:
                show("host", host, hay)
            hay.add("client", client)
            outcomes = set()
            for task in tasks:
                attempt = await task
                outcomes.add(attempt.outcome)
                show("attempt", attempt, hay)
            for bad in BAD_HEADERS:
                with pytest.raises(ValueError) as caught:
                    await client.deliver(urls[0][0], SMALL, bad)
                hay.add_error("header", caught.value)
            with pytest.raises(TypeError) as misuse:
                await client.deliver(urls[0][0], f'{{"card": "{WORD}"}}', headers)
            hay.add_error("payload", misuse.value)
            with pytest.raises(ValueError) as unreadable:
                await client.deliver(urls[0][0].replace("http:", "https:"), SMALL, tls=TLSProfile(ca_pem=WORD))
            hay.add_error("profile", unreadable.value)
            cancelled = asyncio.create_task(client.deliver(urls[1][0], SMALL, headers))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError) as ended:
                await cancelled
            hay.add_error("cancelled", ended.value)
            show("statistics", client.statistics(), hay)
        logs.close()
    assert outcomes >= {
        Outcome.RESPONSE, Outcome.READ_TIMEOUT, Outcome.WRITE_TIMEOUT, Outcome.CONNECT_TIMEOUT, Outcome.TRANSPORT_ERROR,
        Outcome.EGRESS_DENIED,
    }  # fmt: skip
    for observation in heard.attempts:
        show("observation", observation, hay)
    hay.add("metrics", generate_latest(metrics.registry))
    hay.add("log", (tmp_path / "log").read_bytes())
    hay.add_records("logging", caplog.records)
    show("profile", profile, hay)
    assert len(heard.attempts) >= len(urls)
    assert hay.found(key_line) == []


async def test_secrets_01_no_failure_of_the_proxy_shows_its_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Refusals, garbage, ends and silence of a proxy that was given credentials, and configurations that hold them wrongly."""
    caplog.set_level(0)
    hay = Haystack()
    password = f"{WORD}-proxy"
    token = base64.b64encode(f"user:{password}".encode()).decode()
    heard, metrics = Heard(), Metrics()
    for _, raw, reason in REFUSALS:
        async with HostileServer(answers_connect(raw)) as proxy:
            config = ProxyConfig(f"http://127.0.0.1:{proxy.port}", "user", password)
            async with DispatchClient(
                limits(connect_timeout=0.2, read_timeout=1.0),
                egress=LOOPBACK,
                proxy=config,
                observer=Observers(heard, metrics),
            ) as client:
                attempt = await client.deliver(f"https://hook.example.com/{PATH}", SMALL, HEADERS)
                assert attempt.reason is reason
                for shown in (config, client, attempt, client.statistics(), *client.pool.hosts):
                    show("proxy", shown, hay)
            assert any(token.encode() in request.head for request in proxy.requests)
    for url, username, secret in (
        (f"http://user:{password}@proxy:3128", None, None),
        (f"socks5://user:{password}@proxy:1080", None, None),
        (f"http://proxy/{password}", None, None),
        ("http://proxy:3128", None, password),
        ("http://proxy:3128", "a:b", password),
        ("http://proxy:3128", "user", f"{password}\r\nX: 1"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            ProxyConfig(url, username, secret)
        hay.add_error("proxy config", caught.value)
        given = {"GATEPOST_PROXY_URL": url, "GATEPOST_PROXY_USERNAME": username, "GATEPOST_PROXY_PASSWORD": secret}
        with pytest.raises(ConfigurationError) as caught:
            load_settings(None, {name: value for name, value in given.items() if value is not None})
        hay.add_error("proxy settings", caught.value)
    good = {"GATEPOST_PROXY_URL": "http://p:1", "GATEPOST_PROXY_USERNAME": "u", "GATEPOST_PROXY_PASSWORD": password}
    hay.add("settings", repr(load_settings(None, good)))
    for observation in heard.attempts:
        show("observation", observation, hay)
    hay.add("metrics", generate_latest(metrics.registry))
    hay.add_records("logging", caplog.records)
    assert hay.found(token) == []


async def test_secrets_01_the_stores_rows_and_the_dispatchers_answers_show_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Attempt rows, dead letters, deliveries, endpoints, statistics; and the file itself, in which secrets are sealed."""
    caplog.set_level(0)
    hay = Haystack()
    database = tmp_path / "gatepost.db"
    names = ("gone", "silence", "close-mid-head", "garbage", "redirect-302", "error", "ok", "endless-headers")
    policy = ClientPolicy(connect_timeout=0.1, read_timeout=0.3)
    heard = Heard()
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(HostileServer(name)) for name in names]
        gp = await stack.enter_async_context(
            Dispatcher.open(
                f"sqlite:///{database}", policy=policy, egress=LOOPBACK, keys=[STORE_KEY], run=True, observer=heard
            )
        )
        for server in servers:
            endpoint = await gp.endpoints.create(
                server.url + PATH, secret=SIGNING_SECRET, headers=HEADERS, schedule=(0.0, 0.05), window=60.0
            )
            hay.add("endpoint", endpoint)
            hay.add("endpoint", repr(endpoint.secrets))
        await gp.publish("a.b", {"n": 1})
        profile, key_line = client_certificate()
        with_key = await gp.endpoints.create(
            f"https://127.0.0.1:{closed_port()}/{PATH}",
            event_types=("none",),
            secret=SIGNING_SECRET,
            ca_pem=pem(profile.ca_pem),
            client_cert_pem=pem(profile.client_cert_pem),
            client_key_pem=pem(profile.client_key_pem),
        )
        hay.add("endpoint with a key", with_key)
        show("test", await gp.endpoints.test(with_key.id), hay)
        for key in (WORD, f"{WORD}\u00e9", pem(profile.client_key_pem)[:-40]):
            with pytest.raises(ValueError) as caught:
                await gp.endpoints.update(with_key.id, client_key_pem=key, probe=False)
            hay.add_error("key", caught.value)
        async with asyncio.timeout(20):
            while len(heard.attempts) < len(names) or gp.statistics().attempts.dead < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        show("statistics", gp.statistics(), hay)
        hay.add("dispatcher", gp)
        hay.add("client", gp.client)
        hay.add("store", gp.store)
        for endpoint in (await gp.endpoints.list(None, None, 100)).items:
            show("listed", endpoint.id, hay)
            page = await gp.deliveries.list(DeliveryFilter(endpoint=endpoint.number), limit=50)
            for info in page.items:
                show("delivery", info, hay)
                for row in await gp.deliveries.attempts(encode_id(DELIVERY, info.delivery_id)):
                    show("attempt row", row, hay)
        for letter in (await gp.dead_letters.list(DeadFilter())).items:
            show("dead letter", letter, hay)
        for bad in (url for url in FORBIDDEN_URLS if "127.0.0.1" not in url):
            with pytest.raises(ValueError) as caught:
                await gp.endpoints.create(bad)
            hay.add_error("create", caught.value)
        for headers in BAD_HEADERS:
            with pytest.raises(ValueError) as caught:
                await gp.endpoints.create(servers[0].url, headers=headers)
            hay.add_error("create", caught.value)
        for secret in (f"whsec_{WORD}", WORD, f"{SIGNING_SECRET}é"):
            with pytest.raises(ValueError) as caught:
                await gp.endpoints.create(servers[0].url, secret=secret)
            hay.add_error("secret", caught.value)
    for observation in heard.attempts:
        show("observation", observation, hay)
    hay.add_records("logging", caplog.records)
    with sqlite3.connect(database) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in connection.execute(f"SELECT * FROM {table}"):
                if table != "endpoints" and "endpoint" not in table:
                    hay.add(f"table {table}", repr(row))
    connection.close()
    assert hay.found(key_line) == []
    raw = Haystack()
    for path in sorted(tmp_path.glob("gatepost.db*")):  # noqa: ASYNC240 - a few files, after everything
        raw.add(path.name, path.read_bytes())
    sealed = [hit for hit in raw.found() if "signing" in hit[1] or "header" in hit[1] or "value" in hit[1]]
    assert not [hit for hit in raw.found(key_line) if key_line in hit[1]]
    assert sealed == [], "signing secrets and header values are sealed at rest"


async def test_secrets_01_the_api_shows_no_secret(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every answer but the endpoint's own URL, good and bad, and what the process writes meanwhile."""
    hay = Haystack()
    async with api(tmp_path, admin_key=Secret(API_KEY)) as service, HostileServer("gone") as server:
        client = service.client
        hay.add("no key", await text(client.get("/v1/endpoints")))
        client.headers["authorization"] = f"Bearer {API_KEY}"
        body = {"url": server.url + PATH, "secret": SIGNING_SECRET, "headers": HEADERS}
        created = await ok(client.post("/v1/endpoints", json=body), 201)
        for answer in (created, await ok(client.get(f"/v1/endpoints/{created['id']}"))):
            assert answer["url"] == server.url + PATH, "whoever may read the record may read the URL"
            if answer is not created:
                assert "secret" not in answer
            hay.add(
                "endpoint", json.dumps({name: value for name, value in answer.items() if name not in ("url", "secret")})
            )
        profile, key_line = client_certificate()
        tls = {
            "url": f"https://127.0.0.1:{closed_port()}/",
            "ca_pem": pem(profile.ca_pem),
            "client_cert_pem": pem(profile.client_cert_pem),
            "client_key_pem": pem(profile.client_key_pem),
            "secret": SIGNING_SECRET,
        }
        answer = await ok(client.post("/v1/endpoints", json=tls), 201)
        answer.pop("secret", None)
        hay.add("endpoint with a key", json.dumps(answer))
        hay.add("shown again", await text(client.get(f"/v1/endpoints/{answer['id']}")))
        for key in (WORD, pem(profile.client_key_pem)[:-40], 5, [WORD]):
            hay.add("bad key", await text(client.post("/v1/endpoints", json={**tls, "client_key_pem": key})))
            hay.add("bad key", await text(client.patch(f"/v1/endpoints/{answer['id']}", json={"client_key_pem": key})))
        hay.add("test", json.dumps(await ok(client.post(f"/v1/endpoints/{created['id']}/test"))))
        await ok(client.post("/v1/events", json={"type": "a", "payload": 1}), 202)
        for path in (
            "/metrics",
            "/healthz",
            "/readyz",
            "/openapi.json",
            "/v1/api-keys",
            "/v1/dead-letters",
            "/v1/tenants",
        ):
            hay.add(path, await text(client.get(path)))
        hay.add("deliveries", await text(client.get("/v1/deliveries", params={"endpoint_id": created["id"]})))
        for url in (url for url in FORBIDDEN_URLS if "127.0.0.1" not in url):
            hay.add("denied", await text(client.post("/v1/endpoints", json={"url": url})))
        for headers in BAD_HEADERS:
            hay.add(
                "header", await text(client.post("/v1/endpoints", json={"url": server.url, "headers": dict(headers)}))
            )
        for bad in (
            {"url": server.url, "secret": WORD},
            {"url": server.url, "secret": f"whsec_{WORD}"},
            {"url": 5, "secret": WORD},
            {"url": server.url, "headers": [WORD]},
        ):
            hay.add("invalid", await text(client.post("/v1/endpoints", json=bad)))
        hay.add("broken", await text(client.post("/v1/endpoints", content=f'{{"secret": "{WORD}"'.encode())))
        other = service.as_key(f"{API_KEY}x")
        hay.add("wrong key", await text(other.get("/v1/endpoints")))
        await other.aclose()
        hay.add("settings", repr(service.running))
    out, err = capfd.readouterr()
    hay.add("stdout", out)
    hay.add("stderr", err)
    assert hay.found(key_line) == []


async def text(response: Any) -> str:
    """Head and body of an answer."""
    answer = await response
    return f"{answer.status_code} {answer.headers!r}\n{answer.text}"


def test_secrets_01_the_command_line_and_the_configuration_show_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `send` and `egress check` print, and every error of a configuration that holds secrets."""
    hay = Haystack()
    runner = CliRunner()
    monkeypatch.setenv("GATEPOST_SEND_SECRET", SIGNING_SECRET)
    port = closed_port()
    loopback = ("--allow-http", "--allow-cidr", "127.0.0.0/8")
    header = ("--header", f"X-Token: {WORD}value")
    sends: list[tuple[str, ...]] = [(f"http://127.0.0.1:{port}/{PATH}", *loopback, *header)]
    sends += [(url, *header) for url in FORBIDDEN_URLS]
    for arguments in sends:
        for style in ((), ("--json",)):
            result = runner.invoke(app, ["send", *arguments, *style])
            assert result.exit_code in (1, 2), result.output
            hay.add(f"send {style}", result.output)
            if result.exception is not None:
                hay.add_error("send", result.exception)
    for option, value in (("--header", f"X-Token: {WORD}\u00e9"), ("--header", WORD), ("--secret", WORD)):
        hay.add("send", runner.invoke(app, ["send", "https://hook.example.com/", option, value]).output)
    for url in FORBIDDEN_URLS:
        for style in ((), ("--json",)):
            hay.add("egress check", runner.invoke(app, ["egress", "check", url, *style]).output)
        hay.add(
            "jsonl", runner.invoke(app, ["egress", "check", "--jsonl"], input=json.dumps({"url": url}) + "\n").output
        )
    for name, value in {
        "GATEPOST_ADMIN_KEY": WORD,
        "GATEPOST_KEYS": f"{WORD},{WORD}",
        "GATEPOST_DATABASE": f"postgresql://u:{WORD}@db/x",
        f"GATEPOST_UNKNOWN_{WORD.upper()}": WORD,
        "GATEPOST_POLICY_READ_TIMEOUT": "0",
    }.items():
        try:
            settings = load_settings(None, {"GATEPOST_ADMIN_KEY": API_KEY, name: value})
        except ConfigurationError as error:
            hay.add_error(name, error)
        else:
            hay.add(name, repr(settings))
    assert hay.found() == []


def test_secrets_01_secret_types_neither_print_nor_pickle() -> None:
    """A debugger's `print` and a task queue's pickle are the two usual ways out."""
    hay = Haystack()
    profile, key_line = client_certificate()
    for what in (Secret(WORD), Signer([SIGNING_SECRET]), profile):
        show(type(what).__name__, what, hay)
    for what in (Secret(WORD), Signer([SIGNING_SECRET])):
        with pytest.raises(TypeError):
            pickle.dumps(what)
    assert hay.found(key_line) == []


@pytest.mark.parametrize("url", [f"https://{USERINFO}hook.example.com/", f"https://{WORD}@hook.example.com/"])
async def test_secrets_02_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    """Refused at registration and at each attempt: moving them to a header is for the owner to do, and said in the remedy."""
    verdict = check_url(url, EgressPolicy())
    assert isinstance(verdict, Denied)
    assert verdict.reason == "userinfo_present"
    assert "headers" in verdict.remedy
    hay = Haystack()
    show("verdict", verdict, hay)
    async with DispatchClient(limits()) as client:
        attempt = await client.deliver(url, SMALL)
        assert attempt.outcome is Outcome.EGRESS_DENIED
        show("attempt", attempt, hay)
    assert hay.found() == []
