"""For the other side of a webhook: check it, let each id through once, and answer what makes a sender do the right thing.

    inbox = Inbox(["whsec_…"], seen=SqliteSeenIds("seen.db"))

    with inbox.receive(body, headers) as got:
        if got.message is not None:
            work(got.message)          # an exception: the sender tries again, and the id is free for it
    return got.status, got.code

`gatepost.receive.fastapi` and `gatepost.receive.django` do this for those frameworks. It needs nothing installed but Gatepost
itself, imports no framework, and knows nothing of sending.
"""

from __future__ import annotations

from gatepost.errors import SignatureError
from gatepost.receive.inbox import Inbox, Received
from gatepost.receive.seen import AsyncSeenIds, MemorySeenIds, Seen, SeenIds
from gatepost.receive.seen_redis import AsyncRedisSeenIds, RedisSeenIds
from gatepost.receive.seen_sqlite import SqliteSeenIds
from gatepost.wire.signing import Message

__all__ = [
    "AsyncRedisSeenIds",
    "AsyncSeenIds",
    "Inbox",
    "MemorySeenIds",
    "Message",
    "Received",
    "RedisSeenIds",
    "Seen",
    "SeenIds",
    "SignatureError",
    "SqliteSeenIds",
]
