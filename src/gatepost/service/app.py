"""The composition root: settings in, a running service out, and a drain on the way down.

`open_service` wires store, dispatcher, API and observers together and is what embedding code and tests use; `serve` adds the
process around it: uvloop, signals, exit codes. Nothing else in the package constructs these parts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import uvicorn

from gatepost.clock import SYSTEM_CLOCK, Clock
from gatepost.delivery.records import Secret
from gatepost.dispatch.dispatcher import Dispatcher, DispatcherSettings
from gatepost.errors import ConfigurationError, GatepostError
from gatepost.net.resolver import Resolver
from gatepost.service.api.app import create_api, create_pages
from gatepost.service.api.auth import KeyRing, key_record
from gatepost.service.api.context import Service
from gatepost.service.api.doctor import answer_siblings
from gatepost.service.child import ParentLine, Place
from gatepost.service.config import Settings
from gatepost.service.console.keys import signing_keys
from gatepost.service.console.pulse import Pulse
from gatepost.service.doctor.collect import Doctor
from gatepost.service.doctor.machine import disk_directory
from gatepost.service.doctor.recent import RecentHosts
from gatepost.service.effective import (
    check_bind,
    doubts,
    idle_memory,
    is_loopback,
    limit_rows,
    phase_limits,
)
from gatepost.service.gauges import StoreSizes, watch_dispatcher, watch_store
from gatepost.service.heap import keep_heap_quiet
from gatepost.service.logs import LogObserver, Logs
from gatepost.service.metrics import Metrics, labels_of
from gatepost.service.notify import READY, STOPPING, notify
from gatepost.service.observers import Observers
from gatepost.service.shared_metrics import SharedMetrics
from gatepost.service.siblings import Siblings
from gatepost.service.tracing import open_tracing
from gatepost.store.port import Registry
from gatepost.telemetry import Observer, Tracing

Result = TypeVar("Result")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What drains a process."""
EXIT_CLEAN: Final = 0
EXIT_FAILED: Final = 1
EXIT_CONFIGURATION: Final = 2
CONFIGURED_KEY: Final = "security.admin_key"
"""Name of the API key that comes from the configuration; it follows the configuration."""
KEEP_ALIVE: Final = 75
"""Seconds an idle API connection is kept: longer than the 60 of common load balancers, which must be the ones to close."""
BACKLOG: Final = 2_048
REQUESTS_GRACE: Final = 5
"""Seconds that API requests in progress get at the end; a publish waits no longer than that for the store."""
LEAVE_AFTER: Final = 0.5
"""Seconds in which the request of a connection that was just accepted arrives; then connections without one are closed."""


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the drain is ours. Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        self.listening.set()

    def refuse_connections(self) -> None:
        """Accept no more. Those that wait in a socket we share go to the other processes."""
        for listening in self.servers:
            listening.close()

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]  # wider than the generator it replaces
        return nullcontext()


@dataclass(slots=True)
class Running:
    """A service that accepts requests."""

    service: Service
    url: str
    """Where the API listens; of a worker, where its health and metrics are."""
    serving: asyncio.Task[None]
    """Ends early only when the HTTP server fails."""

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher behind it."""
        return self.service.dispatcher


@asynccontextmanager
async def open_service(
    settings: Settings,
    *,
    logs: Logs | None = None,
    observer: Observer | None = None,
    clock: Clock = SYSTEM_CLOCK,
    place: Place | None = None,
    resolver: Resolver | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[Running]:
    """A running service, drained and closed on the way out.

    `place` says which process of a fleet this is, None: the only one of this machine. `observer` hears of everything beside
    metrics and log; `resolver` answers names, None: the system's; `tracing` makes the spans, None: as `settings.tracing`
    says. Raises `ConfigurationError` for what must not start, `StoreError` when the store cannot be opened.
    """
    phase_limits(settings.policy)
    place = place or Place()
    count = 1 if place.seat is None else place.seat.count
    metrics = Metrics(hosts=labels_of(settings.metrics.hosts, count), clock=clock, process=str(place.index))
    siblings = Siblings(place.seat)
    shared_metrics = SharedMetrics(metrics, siblings)
    pulse = Pulse(clock)
    recent = RecentHosts(clock)
    observers: list[Observer] = [metrics, pulse, recent]
    if logs is not None:
        observers.append(LogObserver(logs, attempts=settings.log.attempts, sample_healthy=settings.log.sample_healthy))
        metrics.watch("gatepost_log_lines_dropped_total", lambda: logs.dropped)
    if observer is not None:
        observers.append(observer)
    async with AsyncExitStack() as stack:
        listener, own = _listeners(settings, place, stack)
        address = _url_of(settings.listen.host if own is None else settings.fleet.host, own or listener)
        if tracing is None:
            tracing = await stack.enter_async_context(open_tracing(settings.tracing))
        dispatcher = await stack.enter_async_context(
            Dispatcher.open(
                settings.database,
                policy=settings.policy,
                egress=settings.egress,
                resolver=resolver,
                proxy=settings.proxy,
                observer=Observers(*observers),
                keys=[key.reveal() for key in settings.keys] or None,
                settings=_dispatcher_settings(settings, place, address),
                outboxes=settings.outboxes,
                tracing=tracing,
            )
        )
        hosts = {settings.listen.host: "listen.host"} if place.public else {}
        if place.needs_pages:
            hosts.setdefault(settings.fleet.host, "fleet.host")
        keys = KeyRing(dispatcher.store, clock, open_on_loopback=all(is_loopback(host) for host in hosts))
        await _configure_admin_key(dispatcher.store, settings.admin_key, clock)
        await keys.refresh()
        for host, named in hosts.items():
            check_bind(host, has_keys=not keys.empty, named=named)
        service = Service(
            dispatcher=dispatcher,
            store=dispatcher.store,
            keys=keys,
            metrics=metrics,
            max_payload=settings.max_payload,
            max_loop_lag=settings.max_loop_lag,
            logs=logs,
            metrics_public=settings.metrics.public,
            signing_keys=signing_keys(settings),
            pulse=pulse,
            doctor=Doctor(
                dispatcher,
                dispatcher.store,
                recent,
                machine=Place().name(settings.fleet.name),
                directory=disk_directory(settings.database),
                clock=clock,
            ),
            siblings=siblings,
            shared_metrics=shared_metrics,
            clock=clock,
        )
        sizes = StoreSizes(dispatcher.store)
        watch_dispatcher(metrics, dispatcher, clock)
        watch_store(metrics, sizes)
        assert service.doctor is not None, "made above"
        answer_siblings(service.siblings, service.doctor)
        await shared_metrics.open()
        stack.push_async_callback(shared_metrics.aclose)
        await stack.enter_async_context(siblings)
        pages = None if own is None else create_pages(service)
        server = _Server(_server_config(create_api(service) if place.public else pages))
        own_server = None if own is None or own is listener else _Server(_server_config(pages))
        # Nothing was attempted before everything that can refuse to start has had its say.
        dispatcher.run_in_background()
        # Tasks of our own, not a group: a group would wrap whatever the caller's block raises.
        measuring = _start(sizes.run(), "store-sizes")
        looking = _start(pulse.run(dispatcher), "console-pulse")
        serving = _start(server.serve(sockets=[listener]), "http")
        listening = _start(server.listening.wait(), "http-start")
        others = [] if own_server is None or own is None else [_start(own_server.serve(sockets=[own]), "http-own")]
        try:
            await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving  # raises what ended it
                raise GatepostError("the HTTP server ended before it listened")
            host = settings.listen.host if place.public else settings.fleet.host
            yield Running(service, _url_of(host, listener), serving)
        finally:
            measuring.cancel()
            looking.cancel()
            listening.cancel()
            # No new requests, no new attempts: both at once, since each waits for its own.
            await asyncio.gather(
                dispatcher.drain(settings.grace),
                _stop_serving(service, server, serving, shared=place.listener is not None),
            )
            if own_server is not None:  # to the end, so that a drain can be watched
                own_server.should_exit = True
            await asyncio.gather(measuring, looking, listening, *others, return_exceptions=True)


async def _stop_serving(service: Service, server: _Server, serving: asyncio.Task[None], *, shared: bool) -> None:
    """Take no new requests. A socket that others accept from too is left to them first, so that no request finds nobody."""
    if shared and not serving.done():
        service.leaving = True
        server.refuse_connections()
        await asyncio.sleep(LEAVE_AFTER)
    else:
        service.draining = True
    server.should_exit = True
    await serving


def serve(settings: Settings, *, ready: Callable[[Running], None] | None = None, place: Place | None = None) -> int:
    """Run until SIGTERM, SIGINT or SIGHUP, drain, and return the exit code. A second SIGTERM or SIGINT ends the process at once.

    A child of `service.processes` (`place.parent`) ends too when its parent does. 0: drained. 1: the store or the server failed.
    2: configuration. `ready` is called once requests are accepted.
    """
    logs = Logs(settings.log.format, level=settings.log.level)
    logs.take_over()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, logs, ready, place or Place()))
    except ConfigurationError as error:
        logs.entry("error", "configuration", str(error))
        return EXIT_CONFIGURATION
    except (GatepostError, OSError) as error:
        logs.entry("error", "failed", str(error))
        return EXIT_FAILED
    finally:
        logs.close()
    return EXIT_CLEAN


async def _serve(settings: Settings, logs: Logs, ready: Callable[[Running], None] | None, place: Place) -> None:
    if place.parent is None:  # else the parent has said it for all
        log_limits(settings, logs)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        if place.parent is None and number != signal.SIGHUP:
            loop.add_signal_handler(number, _on_signal, number, stop, logs)
        else:
            # A service manager may signal us beside our parent, and a terminal that closes hangs up more than once: neither
            # says that it is enough.
            loop.add_signal_handler(number, stop.set)
    try:
        async with (
            open_service(settings, logs=logs, place=place) as running,
            ParentLine(place.parent, stop.set) as line,
        ):
            node = running.dispatcher.statistics().node
            logs.entry(
                "info", "listening", f"accepting requests at {running.url}", url=running.url, pid=os.getpid(), node=node
            )
            line.watch(running.dispatcher)
            if place.parent is None:
                notify(READY, os.environ)
            if ready is not None:
                ready(running)
            stopping = _start(stop.wait(), "stop")
            heap = _start(keep_heap_quiet(), "heap")
            await asyncio.wait({stopping, running.serving}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            heap.cancel()
            failed = not stop.is_set()
            if place.parent is None:
                notify(STOPPING, os.environ)
            statistics = running.dispatcher.client.statistics()
            logs.entry(
                "info",
                "draining",
                "no new requests, no new attempts",
                in_flight=statistics.in_flight,
                grace_s=settings.grace,
            )
        if failed:
            raise GatepostError("the HTTP server ended by itself; what was accepted is settled or stored")
        logs.entry("info", "stopped", "everything settled")
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def log_limits(settings: Settings, logs: Logs) -> None:
    """What is in force, and what is doubtful: the first lines of every log."""
    rows = [(row.name, row.value, row.source) for row in limit_rows(settings)]
    logs.table("effective_policy", "limits in force", rows)
    logs.entry("info", "connections", idle_memory(settings))
    for doubt in doubts(settings):
        logs.entry("warning", "configuration", doubt)


def _start(work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
    return asyncio.get_running_loop().create_task(work, name=name)  # every caller here ends it


def _on_signal(number: signal.Signals, stop: asyncio.Event, logs: Logs) -> None:
    if stop.is_set():
        # What is unsettled is attempted again after the next start: at least once, by design.
        logs.entry("warning", "stopped", f"second {number.name}: leaving without settling")
        logs.close()
        os._exit(128 + number)
    stop.set()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loops where it is installed; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _server_config(application: Any) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=REQUESTS_GRACE,
        backlog=BACKLOG,
    )


def _listeners(settings: Settings, place: Place, stack: AsyncExitStack) -> tuple[socket.socket, socket.socket | None]:
    """Where the API listens, and where this process' own pages do: None when it has the API for itself."""
    own: socket.socket | None = None
    if place.needs_pages:
        port = settings.fleet.port and settings.fleet.port + place.index
        own = stack.enter_context(open_listener(settings.fleet.host, port, "fleet"))
    if not place.public:
        assert own is not None, "a process without the API has pages"
        return own, own
    if place.listener is not None:
        listener = socket.socket(fileno=place.listener)
        listener.setblocking(False)
        return stack.enter_context(listener), own
    return stack.enter_context(open_listener(settings.listen.host, settings.listen.port)), own


def open_listener(host: str, port: int, section: str = "listen") -> socket.socket:
    """A listening socket, opened by us so that port 0 and a taken port are ours to report. Raises `ConfigurationError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"{section}.host={host}: {error.strerror}; write an address of this machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"{section}.host={host}, {section}.port={port}: {error.strerror}; write a free port, or 0 for any"
        ) from None
    listener.setblocking(False)
    return listener


def _url_of(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _configure_admin_key(registry: Registry, key: Secret | None, clock: Clock) -> None:
    """Make the configured key valid, and the one configured before it invalid. No configured key changes nothing."""
    if key is None:
        return
    wanted = key_record(key.reveal(), tenant=None, name=CONFIGURED_KEY, now=clock.wall_us())
    for known in await registry.api_keys():
        if known.id == wanted.id:
            return
        if known.name == CONFIGURED_KEY:
            await registry.delete_api_key(known.id)
    await registry.put_api_key(wanted)


def _dispatcher_settings(settings: Settings, place: Place, address: str) -> DispatcherSettings:
    return DispatcherSettings(
        name=place.name(settings.fleet.name),
        address=address,
        weight=settings.fleet.weight,
        slots=settings.slots,
        auto_host_cap=settings.auto_host_cap,
        max_payload=settings.max_payload,
        publish_timeout=settings.publish_timeout,
        grace=settings.grace,
        disable_after=settings.disable_after,
        limits=settings.limits,
        retention=settings.retention,
    )
