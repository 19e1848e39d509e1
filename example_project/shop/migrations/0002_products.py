from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

PRODUCTS = (
    ("sencha", "Sencha, 100 g", "Green tea, steamed and rolled: grass, sea air, a little sweet.", "11.50"),
    ("oolong", "Roasted oolong, 80 g", "Slow-roasted over charcoal. Good for five infusions.", "14.00"),
    ("honey", "Heather honey", "Dark, thick and slightly bitter. From four hives on a hill.", "7.90"),
    ("cup", "Stoneware cup", "Thrown by hand, so no two are the same. Holds 200 ml.", "18.50"),
    ("whisk", "Bamboo whisk", "Split from one piece, a hundred tines. For matcha.", "12.00"),
    ("kettle", "Tin kettle", "The one we are named after. Whistles in two voices.", "64.00"),
)


def fill_the_shelf(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    product = apps.get_model("shop", "Product")
    product.objects.using(schema_editor.connection.alias).bulk_create(
        product(slug=slug, name=name, description=description, price=price)
        for slug, name, description, price in PRODUCTS
    )


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]

    operations = [migrations.RunPython(fill_the_shelf, migrations.RunPython.noop)]
