"""The HTTP API under `/v1`: routers by noun over a `Dispatcher`; it holds no state of its own beyond the key ring."""
