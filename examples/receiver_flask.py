"""Receive webhooks with Flask: check the signature over the raw body, drop repetitions, answer at once.

    pip install gatepost flask
    WEBHOOK_SECRETS="whsec_…" flask --app receiver_flask run --port 9000

Two secrets, separated by a space, let the sender rotate: the old one stays valid until it is taken out.
"""

from __future__ import annotations

import os

from flask import Flask, Response, abort, request

from gatepost import SignatureError, verify

SECRETS = os.environ["WEBHOOK_SECRETS"].split()

app = Flask(__name__)
done: set[str] = set()
"""Ids already handled. In earnest: a unique column, written in the transaction that does the work."""


@app.post("/webhooks")
def receive() -> Response:
    """2xx means "mine now"; anything else is sent again later, with the same `webhook-id`."""
    body = request.get_data()  # the bytes as sent: what is signed is not the JSON but these
    try:
        message = verify(body, request.headers, SECRETS)
    except SignatureError as error:
        abort(Response(error.code, status=401))
    if message.id not in done:
        done.add(message.id)
        # Hand the work to a queue here: a sender stops waiting after some seconds.
    return Response(status=204)
