"""Databases whose statements end when the deadline passes, one module for each library, imported only by who uses it.

The server is told (statement and lock timeouts from what is left), so a query whose caller has died ends all the same.
"""
