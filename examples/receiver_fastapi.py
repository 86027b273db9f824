"""Receive webhooks with FastAPI: check the signature over the raw body, drop repetitions, answer at once.

    pip install gatepost fastapi uvicorn
    WEBHOOK_SECRETS="whsec_…" uvicorn receiver_fastapi:app --port 9000

Two secrets, separated by a space, let the sender rotate: the old one stays valid until it is taken out.
"""

from __future__ import annotations

import os

from fastapi import FastAPI, HTTPException, Request, Response

from gatepost import SignatureError, verify

SECRETS = os.environ["WEBHOOK_SECRETS"].split()

app = FastAPI()
done: set[str] = set()
"""Ids already handled. In earnest: a unique column, written in the transaction that does the work."""


@app.post("/webhooks")
async def receive(request: Request) -> Response:
    """2xx means "mine now"; anything else is sent again later, with the same `webhook-id`."""
    body = await request.body()  # the bytes as sent: what is signed is not the JSON but these
    try:
        message = verify(body, request.headers, SECRETS)
    except SignatureError as error:
        raise HTTPException(401, error.code) from None
    if message.id not in done:
        done.add(message.id)
        # Hand the work to a queue or a background task here: a sender stops waiting after some seconds.
    return Response(status_code=204)
