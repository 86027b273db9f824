"""What the shop keeps."""

# Django has no types.
# mypy: ignore-errors
from django.db import models


class Order(models.Model):
    """An order; its number is its customer's."""

    number = models.IntegerField(unique=True)
