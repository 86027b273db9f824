"""Feeds the engine mutated responses, cut at random places and delayed at random, and checks what must hold for any bytes.

`python -m bench.fuzz` reads a million of them, most by the reader alone and a part through the whole client on virtual time;
the test suite runs the same two functions with smaller counts. Nothing here decides what a response means: it checks that
no byte makes the engine raise, hang past its limits, mix up two requests, or use a connection after a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise

from gatepost.delivery.attempt import Attempt
from gatepost.delivery.outcome import Outcome
from gatepost.delivery.policy import ClientPolicy
from gatepost.net.client import DispatchClient
from gatepost.testing.hostile import Behaviour, HostileServer, Peer
from gatepost.testing.virtual import SeededEntropy, VirtualLoop, run_virtual
from gatepost.wire.egress import EgressPolicy
from gatepost.wire.exchange import ResponseReader

HEAD_MAX = 4_096
BODY_MAX = 4_096
INTERIM_MAX = 5
CLIENT_SHARE = 20
"""One response in this many goes through the whole client in the long run; it costs about ten times as much."""
HOSTS = 16
"""Servers of one batch, every other one rude: it adds surplus and closes at once, from which the pool learns not to keep."""
AT_ONCE = 64
"""Deliveries in flight together in the client's part."""
READ_LIMIT = 1.0
"""Virtual seconds for an answer; delays are drawn so that some fall behind it."""

OUTCOMES = frozenset(
    {
        Outcome.RESPONSE,
        Outcome.TRANSPORT_ERROR,
        Outcome.READ_TIMEOUT,
        Outcome.DEADLINE_EXCEEDED,
        Outcome.EGRESS_DENIED,  # where a redirect leads
    }
)
STATUSES = (200, 200, 200, 200, 202, 204, 299, 301, 304, 307, 400, 404, 408, 410, 413, 429, 500, 502, 503, 599)
TOKENS = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b" ", b"\t", b":", b",", b";", b"\x00", b"\xff", b"0\r\n\r\n", b"0\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 99999999999999999999\r\n", b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"Connection: close\r\n", b"Keep-Alive: timeout=0\r\n",
    b"Connection: keep-alive\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"HTTP/1.0 ", b"HTTP/2.0 ",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b" folded\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"0x5\r\n", b"5;a=b\r\n",
    b"x" * 300, b"X: " + b"y" * 5_000, b"Upgrade: h2c\r\n", b"Trailer: a\r\n",
)  # fmt: skip


def valid_response(rng: random.Random, identity: str) -> bytes:
    """A lawful response that carries `identity` in a field and in its body."""
    status = rng.choice(STATUSES)
    body = (identity + "|").encode() * rng.randrange(1, 8)
    lines = [f"HTTP/1.{rng.choice((1, 1, 1, 0))} {status} Said".encode(), b"X-Id: " + identity.encode()]
    lines += [b"X-%d: %d" % (number, number) for number in range(rng.randrange(4))]
    if rng.random() < 0.1:
        lines.append(b"Connection: " + rng.choice((b"close", b"keep-alive")))
    if rng.random() < 0.1:
        lines.append(b"Keep-Alive: timeout=%d, max=%d" % (rng.randrange(90), rng.randrange(9)))
    interim = b"".join(
        b"HTTP/1.1 %d Wait\r\nX-Id: no\r\n\r\n" % rng.choice((100, 102, 103))
        for _ in range(rng.randrange(1, 3) if rng.random() < 0.1 else 0)
    )
    if 300 <= status < 400:
        lines.append(b"Location: " + rng.choice((b"/next", b"?again", b"http://10.0.0.1/", b"/x%01", b"")))
    if status in (204, 304):
        return interim + b"\r\n".join([*lines, b"", b""])
    style = rng.random()
    if style < 0.5:
        lines.append(b"Content-Length: %d" % len(body))
        return interim + b"\r\n".join([*lines, b"", body])
    if style < 0.95:
        lines.append(b"Transfer-Encoding: chunked")
        return interim + b"\r\n".join([*lines, b"", chunked(rng, body)])
    return interim + b"\r\n".join([*lines, b"", body])


def chunked(rng: random.Random, body: bytes) -> bytes:
    """`body` in chunks, some with extensions, sometimes with trailers."""
    parts = []
    at = 0
    while at < len(body):
        size = min(rng.randrange(1, 20), len(body) - at)
        extension = b";x=1" if rng.random() < 0.1 else b""
        parts.append(b"%x%b\r\n%b\r\n" % (size, extension, body[at : at + size]))
        at += size
    trailers = b"X-Sum: 1\r\n" if rng.random() < 0.2 else b""
    return b"".join(parts) + b"0\r\n" + trailers + b"\r\n"


def identity_of(seed: int, number: int) -> str:
    """An id that no change of a few bytes turns into another one."""
    return "id-" + hashlib.blake2b(f"{seed} {number}".encode(), digest_size=12).hexdigest()


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """`raw` with up to four changes; one in four stays as it is."""
    data = bytearray(raw)
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3, 4))):
        at = rng.randrange(len(data) + 1)
        upto = min(len(data), at + rng.randrange(1, 24))
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] = rng.randrange(256)
            case 1:
                del data[at:upto]
            case 2:
                data[at:at] = data[at:upto]
            case 3 | 4:
                data[at:at] = rng.choice(TOKENS)
            case 5:
                del data[at:]
            case 6:
                data = data.replace(b"\r\n", b"\n", rng.randrange(1, 4))
            case _:
                found = [place for place, byte in enumerate(data) if byte in b"0123456789"]
                if found:
                    data[rng.choice(found)] = rng.choice(b"0123456789abc-+ ")
    return bytes(data)


def pieces(rng: random.Random, raw: bytes) -> list[bytes]:
    """`raw` cut at random places, now and then at every byte."""
    if not raw:
        return []
    if rng.random() < 0.02:
        return [raw[at : at + 1] for at in range(len(raw))]
    cuts = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randrange(5)))
    edges = [0, *cuts, len(raw)]
    return [raw[start:end] for start, end in pairwise(edges) if start < end]


@dataclass(frozen=True)
class Read:
    """What a reader made of some bytes."""

    fault: str | None
    status: int | None
    body: bytes
    body_fault: str | None
    reusable: bool


def read_all(parts: Sequence[bytes], orderly: bool) -> Read:
    """Feed `parts` and the end; raises `AssertionError` for anything that must not be."""
    reader = ResponseReader(HEAD_MAX, BODY_MAX, INTERIM_MAX)
    for part in parts:
        reader.feed(part)
        if reader.done and reader.head is None:
            break
    reusable = reader.reusable  # before the end: that is when the pool asks
    if not reader.done:
        reader.end(orderly)
    head = reader.head
    assert reader.done, "the end of the connection is the end of the response"
    assert (reader.fault is None) is (head is not None), "a head, or the reason why there is none"
    assert len(reader.body) <= BODY_MAX
    assert reader.interim_count <= INTERIM_MAX + 1
    if head is not None:
        assert 200 <= head.status <= 999
    if reusable:
        assert head is not None
        assert head.reusable
        assert reader.body_fault is None
        assert not reader.surplus
    return Read(reader.fault, None if head is None else head.status, reader.body, reader.body_fault, reusable)


def same_meaning(raw: bytes, whole: Read, cut: Read) -> bool:
    """Equal; of a response above the limits, which are looked at as bytes come, only its status and that no fault is reusable."""
    if len(raw) <= HEAD_MAX:
        return whole == cut
    return whole.status == cut.status


def fuzz_readers(count: int, seed: int) -> Counter[str]:
    """Read `count` responses twice, whole and in pieces: both must come to the same. Returns how they ended."""
    rng = random.Random(seed)
    ends: Counter[str] = Counter()
    for number in range(count):
        raw = mutated(rng, valid_response(rng, f"id-{seed}-{number}"))
        orderly = rng.random() < 0.7
        whole = read_all([raw] if raw else [], orderly)
        cut = read_all(pieces(rng, raw), orderly)
        assert same_meaning(raw, whole, cut), (
            f"cuts change the meaning of seed {seed} number {number}: {raw!r}\n{whole}\n{cut}"
        )
        ends[str(whole.fault or whole.body_fault or "ok")] += 1
        ends["reusable"] += whole.reusable
    return ends


@dataclass
class Watch:
    """What the server saw: which id was answered on a connection before which, and how many requests an id took."""

    follows: list[tuple[str, str]] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    late: int = 0
    """Answers given up because the next request was already there: what follows could not be told from its answer."""


async def fuzz_client(count: int, seed: int, loop: VirtualLoop) -> Counter[str]:
    """Send `count` deliveries to a server that answers mutations; returns how they ended."""
    watch = Watch()
    rng = random.Random(seed)
    policy = _limits(follow_redirects=seed % 2 == 1)
    attempts: dict[str, Attempt] = {}
    ends: Counter[str] = Counter()
    issued = {identity_of(seed, number) for number in range(count)}
    waiting = iter(sorted(issued))

    def player(rude: bool) -> Behaviour:
        async def play(peer: Peer, _seconds: float) -> None:
            before = None
            while True:
                request = await peer.read_request()
                identity = request.body.decode()
                watch.requests[identity] += 1
                if before is not None:
                    watch.follows.append((before, identity))
                before = identity
                await answer(peer, identity, rude)

        return Behaviour("fuzz", "answers mutations", "anything", play)

    async def answer(peer: Peer, identity: str, rude: bool) -> None:
        raw = valid_response(rng, identity)
        if rude or rng.random() < 0.3:
            raw = mutated(rng, raw)
        if rude and rng.random() < 0.1:
            raw += valid_response(rng, f"evil-{identity}")
        for part in pieces(rng, raw):
            if rng.random() < 0.2:
                await asyncio.sleep(rng.choice((0.001, 0.05, 0.4, 1.5)))
            if peer.readable_now():
                watch.late += 1
                peer.rst()
                return
            await peer.send(part)
        if rude and rng.random() < 0.1:
            await peer.fin()
        elif rude and rng.random() < 0.1:
            peer.rst()

    async def deliver(client: DispatchClient, url: str) -> None:
        for identity in waiting:
            attempt = await client.deliver(url, identity.encode(), {"webhook-id": identity})
            attempts[identity] = attempt
            _check(attempt, identity, issued, policy)
            ends[str(attempt.body_fault or attempt.reason)] += 1
            ends["reused"] += attempt.reused
            ends["stale retry"] += attempt.stale_retry

    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(HostileServer(player(rude=place % 2 == 0))) for place in range(HOSTS)
        ]
        client = await stack.enter_async_context(
            DispatchClient(
                policy,
                egress=EgressPolicy(schemes=("http",), allow_cidrs=("127.0.0.0/8",)),
                clock=loop.clock,
                entropy=SeededEntropy(seed),
            )
        )
        async with asyncio.TaskGroup() as group:
            for place in range(min(AT_ONCE, count)):
                group.create_task(deliver(client, servers[place % HOSTS].url))
        statistics = client.statistics()
        assert (statistics.in_flight, statistics.connections_in_use) == (0, 0)
    for earlier, later in watch.follows:
        first = attempts[earlier]
        # Of an attempt with several requests (a redirect, a stale retry) the record tells how the last one ended.
        assert _clean(first) or watch.requests[earlier] > 1, f"{later} was sent on a connection behind a fault: {first}"
    ends["late"] = watch.late
    assert len(attempts) == count
    return ends


def _limits(follow_redirects: bool) -> ClientPolicy:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the advice on the proportion of limits
        return ClientPolicy(
            connect_timeout=1.0,
            write_timeout=1.0,
            read_timeout=READ_LIMIT,
            pool_timeout=600.0,
            admission_timeout=600.0,
            max_per_host=3,
            per_endpoint_concurrency=AT_ONCE,
            max_response_head=HEAD_MAX,
            max_response_body=BODY_MAX,
            max_interim_responses=INTERIM_MAX,
            follow_redirects=follow_redirects,
        )


def _check(attempt: Attempt, identity: str, issued: set[str], policy: ClientPolicy) -> None:
    """What must hold for every attempt whatever was answered."""
    assert attempt.outcome in OUTCOMES, attempt
    spent = sum(seconds for phase, seconds in attempt.phases.items() if phase not in ("admission", "pool"))
    assert spent <= policy.attempt_budget + 0.2, f"{attempt} went past its limits"
    assert len(attempt.body) <= BODY_MAX
    seen = attempt.header("x-id")
    if seen is not None:
        other = seen.removeprefix("evil-")
        assert other == identity or other not in issued, f"{identity} got the answer of {seen}: {attempt}"


def _clean(attempt: Attempt) -> bool:
    return attempt.outcome is Outcome.RESPONSE and attempt.body_fault is None


def fuzz_client_run(count: int, seed: int) -> Counter[str]:
    """`fuzz_client` on a virtual loop of its own."""

    async def main() -> Counter[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return await fuzz_client(count, seed, loop)

    return run_virtual(main)


def main(arguments: Sequence[str] | None = None) -> int:
    """The long run; prints how responses ended."""
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="responses in all (1000000)")
    parser.add_argument("--seed", type=int, default=1, help="where to begin; a failure names its own (1)")
    chosen = parser.parse_args(arguments)
    through_client = chosen.count // CLIENT_SHARE
    batch = 2_000
    began = time.monotonic()
    ends: Counter[str] = Counter()
    done = 0
    seed = chosen.seed
    for part, runs in ((fuzz_readers, chosen.count - through_client), (fuzz_client_run, through_client)):
        left = runs
        while left:
            size = min(batch, left)
            ends.update({f"{part.__name__} {name}": count for name, count in part(size, seed).items()})
            seed += 1
            left -= size
            done += size
            sys.stderr.write(f"\r{done:,} of {chosen.count:,} responses, {time.monotonic() - began:.0f} s")
    sys.stderr.write("\n")
    for name, count in sorted(ends.items()):
        sys.stdout.write(f"{count:>10,}  {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
