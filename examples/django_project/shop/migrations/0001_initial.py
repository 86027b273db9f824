"""Makes the table of orders."""

# Django has no types.
# mypy: ignore-errors
from django.db import migrations, models


class Migration(migrations.Migration):
    """The first."""

    initial = True
    dependencies = []  # noqa: RUF012 - as makemigrations writes it
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("number", models.IntegerField(unique=True)),
            ],
        )
    ]
