"""What a URL says besides the place holds for publishers and followers too, whichever driver they use."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatepost import Publisher
from gatepost.store.outbox.schema import outbox_statements
from tests.fleet.outbox_drivers import database, run_sql
from tests.fleet.test_outbox_sqlite import following, until, until_count


async def publish_both_ways(url: str) -> None:
    """One event over each driver."""
    async with Publisher.open(url) as publisher:
        await publisher.publish("a", {"n": 1})
    with Publisher.open_sync(url) as threaded:
        threaded.publish_sync("a", {"n": 2})


@pytest.mark.parametrize(
    "query", ["search_path=theirs", "options=-c%20search_path%3Dtheirs", "sslmode=prefer&search_path=theirs%2Cpublic"]
)
async def test_the_schema_that_a_url_names_is_the_one_that_is_used(query: str, tmp_path: Path) -> None:
    """Both spellings, for both drivers: asyncpg takes any setting, libpq knows `options` only and reads no plus as a blank."""
    url = await database("postgres", tmp_path, outbox=False)
    await run_sql(url, "CREATE SCHEMA theirs", "SET search_path = theirs", *outbox_statements("postgres"))
    async with following(f"{url}?{query}") as (_, receiver):
        await publish_both_ways(f"{url}?{query}")
        await until(lambda: len(receiver.ledger) == 2)
        await until_count(url, "SELECT count(*) FROM theirs.gatepost_outbox", 0)
