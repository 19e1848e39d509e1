from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import OuterRef, Subquery

FLAT = ("sencha", "oolong")


def mark_what_is_flat(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    product = apps.get_model("shop", "Product")
    product.objects.using(schema_editor.connection.alias).filter(slug__in=FLAT).update(fits_letterbox=True)


def keep_the_prices_of_orders(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    alias = schema_editor.connection.alias
    price = apps.get_model("shop", "Product").objects.using(alias).filter(pk=OuterRef("product_id")).values("price")
    apps.get_model("shop", "Order").objects.using(alias).update(unit_price=Subquery(price))


class Migration(migrations.Migration):
    dependencies = [("shop", "0003_patterns")]

    operations = [
        migrations.RunPython(mark_what_is_flat, migrations.RunPython.noop),
        migrations.RunPython(keep_the_prices_of_orders, migrations.RunPython.noop),
    ]
