"""Migrations of the project's database: the outbox table, nothing else."""
