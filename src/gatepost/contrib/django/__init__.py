"""Gatepost in a Django project: publish in the transaction that writes the order, run the service with `manage.py gatepost`.

Add `"gatepost.contrib.django"` to `INSTALLED_APPS` and run `manage.py migrate gatepost`, which makes the outbox table. `GATEPOST`
in the settings holds what `gatepost.toml` would.
"""

from gatepost.contrib.django.publishing import publish as publish
from gatepost.contrib.django.publishing import publish_on_commit as publish_on_commit

__all__ = ["publish", "publish_on_commit"]
