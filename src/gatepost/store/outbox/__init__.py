"""The outbox: events that producers write in their own database or into Gatepost's, and how a dispatcher gets them out again."""
