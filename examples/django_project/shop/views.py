"""Takes orders, and tells of them in the same transaction."""

# Django has no types.
# mypy: ignore-errors
import json

from django.db import IntegrityError, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from gatepost.contrib.django import publish
from shop.models import Order


@csrf_exempt
@require_POST
def orders(request: HttpRequest) -> JsonResponse:
    """201 with the event's id; 409 when the number is taken, and then nobody is told of it."""
    number = json.loads(request.body)["number"]
    try:
        with transaction.atomic():
            receipt = publish("order.created", {"number": number})
            Order.objects.create(number=number)  # fails for a number that is taken: the event goes with it
    except IntegrityError:
        return JsonResponse({"error": "this number is taken"}, status=409)
    return JsonResponse({"event_id": receipt.event_id}, status=201)
