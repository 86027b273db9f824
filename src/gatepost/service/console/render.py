"""The templates' environment: escaping always on, undefined names an error, our filters, and the navigation.

It knows no request and no data; `view` passes what a page needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from gatepost.delivery.ids import DELIVERY, ENDPOINT, encode_id
from gatepost.service.console import filters
from gatepost.service.console.session import PATH
from gatepost.service.console.static import static_path


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the navigation."""

    key: str
    label: str
    path: str
    admin: bool = False
    """Only admins see it."""


NAVIGATION: Final = (
    Section("overview", "Overview", "/"),
    Section("endpoints", "Endpoints", "/endpoints"),
    Section("deliveries", "Deliveries", "/deliveries"),
    Section("dead", "Dead letters", "/dead-letters"),
    Section("policy", "Policy", "/policy", admin=True),
    Section("fleet", "Fleet", "/fleet", admin=True),
    Section("audit", "Audit log", "/audit"),
)
"""In the order of the questions one asks: is it well, who is not, what became of this one, what was given up, why so, who does it,
who changed it."""


def url(path: str, *segments: str, **query: object) -> str:
    """A path of the console with its segments and query quoted; a query value of None or "" is left out."""
    whole = PATH + path + "".join("/" + quote(str(segment), safe="") for segment in segments)
    given = {name: value for name, value in query.items() if value is not None and value != ""}
    return f"{whole}?{urlencode(given)}" if given else whole


@cache
def environment() -> Environment:
    """The one environment; templates are compiled once."""
    made = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        when=filters.when,
        ago=_ago,
        duration=filters.duration,
        size=filters.size,
        count=filters.number,
        rate=filters.rate,
        percent=filters.percent,
        given=filters.given,
        ident=filters.ident,
        badge=filters.badge,
        delivery_id=partial(encode_id, DELIVERY),
        endpoint_id=partial(encode_id, ENDPOINT),
    )
    made.globals.update(url=url, static=_static, navigation=NAVIGATION)
    return made


def render(template: str, context: Mapping[str, Any]) -> str:
    """The text of a template."""
    return environment().get_template(template).render(context)


@pass_context
def _ago(context: Context, at_us: int | None) -> Markup:
    return filters.ago(at_us, context["now"])


def _static(name: str) -> str:
    return PATH + static_path(name)
