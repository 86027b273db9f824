"""Clients whose calls end when the deadline passes, one module for each library, imported only by who uses it.

Each gives every call a true total: neither a response head nor a body that drips byte by byte outlives it. The time left is
told to internal tiers only.
"""
