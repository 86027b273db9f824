"""`/console/`: is it well, and who is not. The figures of now, refreshed while one looks; a tenant sees its own.

Figures of the last minutes come from memory (`pulse`), depth and age from the store's and the dispatcher's own counts: looking costs
the queue nothing. What is known of a failing endpoint is asked for the few that are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter
from markupsafe import Markup
from starlette.responses import Response

from gatepost import svg
from gatepost.admission.breaker import BreakerState
from gatepost.delivery.ids import ENDPOINT, decode_id
from gatepost.dispatch.learned import KnownLimits
from gatepost.errors import StoreError
from gatepost.service.api.context import Service
from gatepost.service.console.pulse import SLOT, SLOTS, merge
from gatepost.service.console.view import View, ViewDep
from gatepost.store.rows import Backlog, DeadFilter

MINUTE_SLOTS: Final = 60 // SLOT
WORST_SHOWN: Final = 12
"""Endpoints for which more is asked: each may be a read of the store."""
HELD_LOOKED_AT: Final = 100
"""Endpoints whose breaker opened that are looked at again each time, the newest: some microseconds each."""
QUESTION: Final = "console.overview"
"""What siblings are asked."""
NEWS_SHOWN: Final = 20
DEAD_COUNTED: Final = 100
"""Dead letters of a tenant are counted up to this: the store keeps no sum by tenant."""
TOTALS_SECONDS: Final = 1.5
"""The store's sums serve everybody who looks for so long: less than the page's interval, and at most some milliseconds a second."""
CHART_WIDTH: Final = 720
CHART_HEIGHT: Final = 90
LABELS_HEIGHT: Final = 16

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Failing:
    """An endpoint that fails or is held."""

    id: str
    tenant: str | None
    host: str
    attempts: int
    failed: int
    ambiguous: int
    mean: float | None
    """Seconds."""
    known: KnownLimits | None
    backlog: Backlog | None


@router.get("/")
async def overview(view: ViewDep) -> Response:
    """The page."""
    return view.page("overview.html", title="Overview", section="overview", **await _figures(view))


@router.get("/overview/live")
async def overview_live(view: ViewDep) -> Response:
    """Its live part."""
    return view.fragment("overview_live.html", **await _figures(view))


def answer_siblings(service: Service) -> None:
    """Tell the other processes of this machine what is here when they ask."""

    async def answer(tenant: Any) -> dict[str, Any]:
        return own_look(service, None if tenant is None else str(tenant))

    service.siblings.answer(QUESTION, answer)


def own_look(service: Service, tenant: str | None) -> dict[str, Any]:
    """What this process has to say, as JSON: for its own page and for its siblings'."""
    dispatcher = service.dispatcher
    for name in list(service.pulse.held(tenant))[-HELD_LOOKED_AT:]:
        known = dispatcher.limits.endpoint(decode_id(ENDPOINT, name))
        if known is not None and known.state is BreakerState.CLOSED:
            service.pulse.closed(name)
    statistics, limits = dispatcher.statistics(), dispatcher.limits.statistics()
    return {
        **service.pulse.look(tenant),
        "processes": 1,
        "in_flight": statistics.scheduler.in_flight,
        "slots": dispatcher.settings.slots,
        "lag": dispatcher.lag_seconds(),
        "loop_lag": statistics.loop_lag_p99,
        "hosts_in_trouble": limits.hosts_in_trouble,
        "fleet_trouble": int(limits.fleet_suspected),
        "store_failing": int(statistics.store_failing),
        "opened": sum(limits.opened.values()) + limits.host_opened,
    }


def together(looks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several processes' looks as one: counts add up, ages and lags are the worst one's."""
    sums = ("processes", "in_flight", "slots", "hosts_in_trouble", "fleet_trouble", "store_failing", "opened")
    return {
        **merge(looks),
        **{name: sum(look[name] for look in looks) for name in sums},
        **{name: max(look[name] for look in looks) for name in ("lag", "loop_lag")},
    }


async def _figures(view: View) -> dict[str, Any]:
    service, tenant = view.service, view.access.tenant
    # Each process of this machine has its own endpoints' attempts; whoever does not answer in time is left out, and counted.
    heard = await view.kept.get("looks", tenant, TOTALS_SECONDS, lambda: service.siblings.ask(QUESTION, tenant))
    look = together([own_look(service, tenant), *heard.answers.values()])
    series = look["series"]
    waiting: int | None = None
    dead: int | None = None
    dead_is_all, store_down = True, False
    try:
        failing = await _failing(service, tenant, look)
        waiting, dead, dead_is_all = await _stored(view, tenant)
    except StoreError:
        # The page for an outage must not go down with it: memory knows what fails now.
        failing, store_down = _remembered(look), True
    attempts, delivered = sum(series["attempts"]), sum(series["delivered"])
    return {
        "look": look,
        "missing": len(heard.missing),
        "delivered_rate": sum(series["delivered"][-MINUTE_SLOTS:]) / 60,
        "attempts": attempts,
        "delivered": delivered,
        "failed": attempts - delivered,
        "ambiguous": sum(series["ambiguous"]),
        "ours": sum(series["ours"]),
        "died": sum(series["dead"]),
        "shed": sum(look["sheds"].values()),
        "store_down": store_down,
        "waiting": waiting,
        "dead": dead,
        "dead_is_all": dead_is_all,
        "failing": failing,
        "held": sum(_is_held(one.known) for one in failing),
        "news": list(reversed(look["news"]))[:NEWS_SHOWN],
        "chart": _chart(series),
    }


async def _stored(view: View, tenant: str | None) -> tuple[int, int, bool]:
    """What waits, how many dead letters there are, and whether these are all of them."""
    store = view.service.store
    if tenant is None:
        totals = await view.kept.get("totals", None, TOTALS_SECONDS, store.totals)
        return totals.waiting, totals.dead, True
    page = await store.dead_letters(DeadFilter(tenant=tenant), None, DEAD_COUNTED)
    return await store.backlog_of(tenant), len(page.items), page.next is None


async def _failing(service: Service, tenant: str | None, look: Mapping[str, Any]) -> Sequence[Failing]:
    """Endpoints that fail now, most failures first, then those that a breaker holds although nothing fails any more."""
    counted = {one["id"]: one for one in look["endpoints"][:WORST_SHOWN]}
    held = [name for name in reversed(look["held"]) if name not in counted][:WORST_SHOWN]
    numbers = {name: decode_id(ENDPOINT, name) for name in [*counted, *held]}
    known = {name: await service.dispatcher.learned.of(number) for name, number in numbers.items()}
    for name in held:
        if not _is_held(known[name]):
            service.pulse.closed(name)
    shown = [*counted, *(name for name in held if _is_held(known[name]))]
    backlogs = await service.store.backlogs([numbers[name] for name in shown]) if shown else {}
    found = []
    for name in shown:
        one = counted.get(name)
        endpoint = None if one is not None else await service.store.endpoint(name)
        if one is None and endpoint is None:
            continue  # deleted meanwhile
        attempts = 0 if one is None else one["attempts"]
        found.append(
            Failing(
                name,
                one["tenant"] if one is not None else endpoint.tenant if endpoint is not None else None,
                one["host"] if one is not None else "",
                attempts,
                attempts - (0 if one is None else one["delivered"]),
                0 if one is None else one["ambiguous"],
                one["elapsed"] / attempts if one is not None else None,
                known[name],
                backlogs.get(numbers[name]),
            )
        )
    return found


def _remembered(look: Mapping[str, Any]) -> Sequence[Failing]:
    """Endpoints that fail now, as far as it is known without the store."""
    return [
        Failing(
            one["id"],
            one["tenant"],
            one["host"],
            one["attempts"],
            one["attempts"] - one["delivered"],
            one["ambiguous"],
            one["elapsed"] / one["attempts"],
            None,
            None,
        )
        for one in look["endpoints"][:WORST_SHOWN]
    ]


def _is_held(known: KnownLimits | None) -> bool:
    return known is not None and known.statistics.state is not BreakerState.CLOSED


def _chart(series: Mapping[str, Sequence[int]]) -> Markup:
    """Attempts per second over the last minutes, with those that failed in front."""
    attempts = [count / SLOT for count in series["attempts"]]
    failed = [(tried - good) / SLOT for tried, good in zip(series["attempts"], series["delivered"], strict=True)]
    highest = max(attempts)
    step = CHART_WIDTH / SLOTS
    parts = []
    for place, (tried, bad) in enumerate(zip(attempts, failed, strict=True)):
        ago = (SLOTS - 1 - place) * SLOT
        title = f"{ago} s ago: {tried:.1f}/s, {bad:.1f}/s failed"
        for value, css in ((tried, "o-delivered"), (bad, "o-failed")):
            if value:
                height = max(1.0, value / highest * (CHART_HEIGHT - 14))
                parts.append(svg.block(place * step + 1, CHART_HEIGHT - height, step - 2, height, css, title))
    parts.append(svg.block(0, CHART_HEIGHT - 1, CHART_WIDTH, 1, "axis", ""))
    parts.append(svg.words(0, CHART_HEIGHT + 13, "five minutes ago", "axis"))
    parts.append(svg.words(CHART_WIDTH, CHART_HEIGHT + 13, "now", "axis", anchor="end"))
    parts.append(svg.words(CHART_WIDTH, 10, f"{highest:,.1f}/s at most", "axis", anchor="end"))
    label = (
        f"Attempts per second over the last five minutes, at most {highest:.1f}, failed ones at most {max(failed):.1f}"
    )
    return Markup(svg.inline(CHART_WIDTH, CHART_HEIGHT + LABELS_HEIGHT, label, "chart", parts))  # noqa: S704 - svg escapes
