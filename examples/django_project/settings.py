"""Settings of the example: as few as Django needs, and Gatepost's."""

import os
from pathlib import Path

DATA = Path(os.environ.get("SHOP_DATA", Path(__file__).resolve().parent))

SECRET_KEY = "for-the-example-only"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["shop", "gatepost.contrib.django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA / "shop.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    }
}

# What gatepost.toml would hold. The outbox that is followed is that of the default database.
GATEPOST = {
    "database": f"sqlite:///{DATA / 'gatepost.db'}",
    "listen": {"port": 8080},
}
