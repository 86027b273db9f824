"""Receive webhooks with Django, in one file; in a project of yours only the view and its line in `urls.py` are needed.

    pip install gatepost django
    WEBHOOK_SECRETS="whsec_…" python receiver_django.py runserver 9000

Two secrets, separated by a space, let the sender rotate: the old one stays valid until it is taken out.
"""

from __future__ import annotations

import os
import sys

from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest
from django.urls import path

from gatepost.receive import Message, SqliteSeenIds
from gatepost.receive.django import webhook

if not settings.configured:
    settings.configure(
        SECRET_KEY=os.environ.get("SECRET_KEY", "only for this example"),
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF=__name__,
    )

seen = SqliteSeenIds(os.environ.get("WEBHOOK_SEEN", "webhooks-seen.db"))
"""Ids already handled, shared by the processes of this machine. Better still: a unique column, written in your transaction."""


@webhook(os.environ["WEBHOOK_SECRETS"].split(), seen=seen)
def receive(request: HttpRequest, message: Message) -> None:
    """Runs once for each id; returning nothing answers 204. An exception, or a 4xx or 5xx, makes the sender come again."""
    print("handling", message.id)  # hand it to a queue: a sender stops waiting after some seconds


urlpatterns = [path("webhooks", receive)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
