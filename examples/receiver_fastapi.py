"""Receive webhooks with FastAPI: check the signature over the raw body, handle each id once, answer at once.

    pip install gatepost fastapi uvicorn
    WEBHOOK_SECRETS="whsec_…" uvicorn receiver_fastapi:app --port 9000

Two secrets, separated by a space, let the sender rotate: the old one stays valid until it is taken out.
"""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import Depends, FastAPI

from gatepost.receive import Message, SqliteSeenIds
from gatepost.receive.fastapi import WebhookRoute, webhook

seen = SqliteSeenIds(os.environ.get("WEBHOOK_SEEN", "webhooks-seen.db"))
"""Ids already handled, shared by the processes of this machine. Better still: a unique column, written in your transaction."""
received = webhook(os.environ["WEBHOOK_SECRETS"].split(), seen=seen)

app = FastAPI()
app.router.route_class = WebhookRoute  # an error that is returned, not raised, makes the sender come again too


@app.post("/webhooks", status_code=204)
async def receive(message: Annotated[Message, Depends(received)]) -> None:
    """Runs once for each id. An exception makes the sender come again; 2xx means "mine now"."""
    print(
        "handling", message.id, len(message.body), "bytes"
    )  # hand it to a queue: a sender stops waiting after some seconds
