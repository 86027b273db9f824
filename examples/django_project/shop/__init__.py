"""A shop with one table."""
