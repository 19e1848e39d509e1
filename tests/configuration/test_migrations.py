"""The migrations match the models."""

import pytest
from django.core.management import call_command


@pytest.mark.django_db
def test_no_migration_is_missing(capsys):
    call_command("makemigrations", "django_jobchains", check_changes=True, dry_run=True)
    assert "No changes detected" in capsys.readouterr().out


@pytest.mark.parametrize("type_", ["django.db.models.AutoField", "django.db.models.BigAutoField"])
@pytest.mark.django_db
def test_the_default_type_of_primary_keys_changes_nothing(settings, capsys, type_):
    settings.DEFAULT_AUTO_FIELD = type_
    call_command("makemigrations", "django_jobchains", check_changes=True, dry_run=True)
    assert "No changes detected" in capsys.readouterr().out
