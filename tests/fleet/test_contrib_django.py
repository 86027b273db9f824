"""The Django helpers inside one process: transactions, `on_commit`, warnings, and URLs made from `DATABASES`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gatepost.store.outbox.schema import outbox_statements
from tests.fleet.outbox_drivers import database, run_sql

SETUP = """
import os, sqlite3, sys, warnings
import django
from django.conf import settings
settings.configure(
    DATABASES={DATABASES},
    INSTALLED_APPS=["gatepost.contrib.django"],
    USE_TZ=True,
    GATEPOST={GATEPOST},
)
django.setup()
from django.core.management import call_command
from django.db import connection, connections, transaction
from gatepost import Publisher
from gatepost.contrib.django import publish, publish_on_commit
from gatepost.contrib.django.conf import environment
call_command("migrate", "gatepost", verbosity=0)

def types():
    with connection.cursor() as cursor:
        cursor.execute("SELECT type FROM gatepost_outbox ORDER BY event_id")
        return [row[0] for row in cursor.fetchall()]
"""

TRANSACTIONS = """
with transaction.atomic():
    publish("kept", {})
    try:
        with transaction.atomic():
            publish("savepoint", {})
            raise KeyError
    except KeyError:
        pass
try:
    with transaction.atomic():
        publish("rolled.back", {})
        raise KeyError
except KeyError:
    pass
with transaction.atomic():
    Publisher().publish_sync("by.alias", b"x", connection=connections["default"])
    Publisher().publish_sync("by.proxy", b"x", connection=connection)
assert types() == ["kept", "by.alias", "by.proxy"], types()

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    publish("alone", {})
assert "outside a transaction" in str(caught[0].message), caught
assert types()[-1] == "alone"

with connection.cursor() as cursor:
    cursor.execute("DROP TABLE gatepost_outbox")
try:
    with transaction.atomic():
        publish("no.table", {})
except Exception as error:
    assert "manage.py migrate gatepost" in str(error), error
else:
    raise AssertionError
print("done")
"""

ON_COMMIT = """
def own():
    with sqlite3.connect(OWN) as file:
        return [row[0] for row in file.execute("SELECT type FROM outbox ORDER BY event_id")]

with transaction.atomic():
    publish_on_commit("after", {"n": 1}, tenant="acme")
    assert not os.path.exists(OWN)
assert own() == ["after"]
try:
    with transaction.atomic():
        publish_on_commit("never", {})
        raise KeyError
except KeyError:
    pass
publish_on_commit("at.once", {})
assert own() == ["after", "at.once"]
try:
    publish_on_commit("a", "text")
except TypeError:
    pass
else:
    raise AssertionError
print("done")
"""

URLS = """
settings.DATABASES["pg"] = {
    "ENGINE": "django.db.backends.postgresql", "NAME": "shop db", "USER": "a@b", "PASSWORD": "p:/", "HOST": "db", "PORT": 5433,
    "OPTIONS": {"sslmode": "require", "pool": True, "options": "-c search_path=shop"},
}
settings.DATABASES["socket"] = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "HOST": "/run/pg"}
settings.DATABASES["other"] = {"ENGINE": "django.db.backends.mysql", "NAME": "shop"}
settings.GATEPOST = {
    "database": "sqlite:///x.db", "listen": {"port": 9}, "metrics": {"public": True},
    "outboxes": ["pg", "socket", "other", "sqlite:///y.db"], "egress": {"schemes": ["https", "http"]},
}
assert environment() == {
    "GATEPOST_DATABASE": "sqlite:///x.db",
    "GATEPOST_LISTEN_PORT": "9",
    "GATEPOST_METRICS_PUBLIC": "true",
    "GATEPOST_OUTBOXES": "postgresql://a%40b:p%3A%2F@db:5433/shop%20db?sslmode=require&options=-c+search_path%3Dshop,"
    "postgresql:///shop?host=%2Frun%2Fpg,sqlite:///y.db",
    "GATEPOST_EGRESS_SCHEMES": "https,http",
}, environment()
print("done")
"""


def run(program: str, databases: str, gatepost: str = "{}") -> None:
    """In a process of its own: Django's settings are global."""
    setup = SETUP.replace("{DATABASES}", databases).replace("{GATEPOST}", gatepost)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", setup + program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def sqlite_databases(path: Path) -> str:
    """`DATABASES` with one SQLite file."""
    return repr({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.fspath(path)}})


def test_publishing_follows_the_transaction_on_sqlite(tmp_path: Path) -> None:
    """`atomic`, its savepoints, and Django's two ways to name a connection."""
    run(TRANSACTIONS, sqlite_databases(tmp_path / "app.db"))


async def test_publishing_follows_the_transaction_on_postgresql(tmp_path: Path) -> None:
    """The same program; the table is there already, made by `gatepost migrate`, and the migration agrees."""
    url = await database("postgres", tmp_path, outbox=False)
    await run_sql(url, *outbox_statements("postgres"))
    place, _, name = url.removeprefix("postgresql://").rpartition("/")
    user, _, address = place.rpartition("@")
    host, _, port = address.partition(":")
    run(
        TRANSACTIONS,
        repr(
            {
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                    "NAME": name,
                    "USER": user,
                    "HOST": host,
                    "PORT": port,
                }
            }
        ),
    )


def test_on_commit_publishes_after_the_commit_and_only_then(tmp_path: Path) -> None:
    """Straight into Gatepost's database, for projects that want no table of ours."""
    own = os.fspath(tmp_path / "gatepost.db")
    program = f"OWN = {own!r}\n{ON_COMMIT}"
    run(program, sqlite_databases(tmp_path / "app.db"), repr({"database": f"sqlite:///{own}"}))


def test_aliases_become_urls(tmp_path: Path) -> None:
    """What the dispatcher follows is what the project writes to, without saying it twice."""
    run(URLS, sqlite_databases(tmp_path / "app.db"))
