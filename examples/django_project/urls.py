"""One route."""

# Django has no types.
# mypy: ignore-errors
from django.urls import path
from shop.views import orders

urlpatterns = [path("orders", orders)]
