"""Adds messages to a stream, as another team's program would: python produce.py redis://localhost:6379 events 3"""

from __future__ import annotations

import json
import sys

import redis

broker = redis.Redis.from_url(sys.argv[1])
for number in range(int(sys.argv[3])):
    broker.xadd(sys.argv[2], {"type": "order.paid", "payload": json.dumps({"number": number})})
