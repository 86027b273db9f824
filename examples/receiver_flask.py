"""Receive webhooks with Flask, or any other framework: raw body and headers in, what to answer out.

    pip install gatepost flask
    WEBHOOK_SECRETS="whsec_…" flask --app receiver_flask run --port 9000

Two secrets, separated by a space, let the sender rotate: the old one stays valid until it is taken out.
"""

from __future__ import annotations

import os

from flask import Flask, Response, request

from gatepost.receive import Inbox, SqliteSeenIds

seen = SqliteSeenIds(os.environ.get("WEBHOOK_SEEN", "webhooks-seen.db"))
"""Ids already handled, shared by the processes of this machine. Better still: a unique column, written in your transaction."""
inbox = Inbox(os.environ["WEBHOOK_SECRETS"].split(), seen=seen)

app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = inbox.max_body


@app.post("/webhooks")
def receive() -> Response:
    """The block runs its work once for each id. An exception makes the sender come again; 2xx means "mine now"."""
    with inbox.receive(request.get_data(), request.headers) as received:
        if received.message is not None:
            print("handling", received.message.id)  # hand it to a queue: a sender stops waiting after some seconds
    text = "" if received.status == 204 else received.code
    return Response(text, status=received.status, headers=received.headers)
