import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0002_products"),
    ]

    operations = [
        migrations.CreateModel(
            name="CarrierEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tracking_code", models.CharField(max_length=80, unique=True)),
                ("address", models.CharField(max_length=200)),
                ("looks", models.PositiveIntegerField(default=0)),
            ],
            options={
                "verbose_name_plural": "carrier entries",
                "ordering": ("-pk",),
            },
        ),
        migrations.CreateModel(
            name="PriceList",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("lines", models.TextField(help_text="One product per line, for example: sencha;11.90")),
                ("chain_id", models.UUIDField(editable=False, null=True, unique=True)),
                ("changed", models.PositiveIntegerField(editable=False, null=True)),
                ("problems", models.JSONField(default=list, editable=False)),
                ("added_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
        migrations.CreateModel(
            name="SalesReport",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.DateField(unique=True)),
                ("orders", models.PositiveIntegerField()),
                ("takings", models.DecimalField(decimal_places=2, max_digits=12)),
            ],
            options={
                "ordering": ("-day",),
            },
        ),
        migrations.AddField(
            model_name="gatewaycharge",
            name="refund_key",
            field=models.CharField(blank=True, max_length=80),
        ),
        migrations.AddField(
            model_name="order",
            name="unit_price",
            field=models.DecimalField(decimal_places=2, default=0, editable=False, max_digits=8),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="order",
            name="address",
            field=models.CharField(blank=True, max_length=200, verbose_name="deliver to"),
        ),
        migrations.AddField(
            model_name="order",
            name="decided_by",
            field=models.CharField(blank=True, editable=False, max_length=150),
        ),
        migrations.AddField(
            model_name="order",
            name="delivery",
            field=models.CharField(
                choices=[
                    ("none", "Not started"),
                    ("packed", "Packed"),
                    ("sent", "On its way"),
                    ("done", "Done"),
                    ("refunded", "Sold out, refunded"),
                ],
                default="none",
                editable=False,
                max_length=20,
            ),
        ),
        migrations.AddField(
            model_name="product",
            name="fits_letterbox",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="product",
            name="stock",
            field=models.PositiveIntegerField(default=500),
        ),
        migrations.AlterField(
            model_name="order",
            name="state",
            field=models.CharField(
                choices=[
                    ("placed", "Placed"),
                    ("awaiting", "Awaiting approval"),
                    ("rejected", "Not approved"),
                    ("paid", "Paid"),
                    ("receipt_sent", "Receipt sent"),
                    ("points_credited", "Points credited"),
                    ("declined", "Card declined"),
                ],
                default="placed",
                editable=False,
                max_length=20,
            ),
        ),
        migrations.CreateModel(
            name="Parcel",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveSmallIntegerField()),
                ("quantity", models.PositiveSmallIntegerField()),
                ("address", models.CharField(blank=True, max_length=200)),
                ("tracking_code", models.CharField(blank=True, max_length=80)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("packed", "Packed"),
                            ("ready", "Ready to be collected"),
                            ("posted", "Posted as a letter"),
                            ("on_its_way", "On its way"),
                            ("delivered", "Delivered"),
                        ],
                        default="packed",
                        max_length=20,
                    ),
                ),
                ("scan", models.CharField(blank=True, max_length=40)),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="parcels", to="shop.order"
                    ),
                ),
            ],
            options={
                "ordering": ("order", "number"),
                "constraints": [models.UniqueConstraint(fields=("order", "number"), name="shop_one_parcel_per_number")],
            },
        ),
    ]
