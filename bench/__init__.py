"""Benchmarks: what the client and the dispatcher cost on this machine, and what isolation and crashes do to deliveries.

Each module is a command (`python -m bench.client --json`) with a `main(argv)` that `gatepost bench` calls. Receivers and
measured code run in processes of their own; figures always come with the machine they were taken on.
"""
