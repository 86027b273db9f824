"""Gatepost inside web frameworks: small, and made of the public names only. Each module needs its framework and nothing else."""
