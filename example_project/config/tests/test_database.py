from pathlib import Path

from django.test import SimpleTestCase

from config.database import database_from_url


class DatabaseUrlTests(SimpleTestCase):
    def test_postgresql_with_everything(self) -> None:
        entry = database_from_url("postgres://ada:p%40ss@db.example:6543/tin%20kettle?sslmode=require")
        assert entry["ENGINE"] == "django.db.backends.postgresql"
        assert (entry["USER"], entry["PASSWORD"]) == ("ada", "p@ss")
        assert (entry["HOST"], entry["PORT"], entry["NAME"]) == ("db.example", 6543, "tin kettle")
        assert entry["OPTIONS"] == {"sslmode": "require"}

    def test_postgresql_with_a_name_only(self) -> None:
        entry = database_from_url("postgresql:///shop")
        assert (entry["NAME"], entry["HOST"], entry["PORT"], entry["USER"]) == ("shop", "", "", "")

    def test_sqlite(self) -> None:
        entry = database_from_url("sqlite:////tmp/shop%20a.sqlite3")
        assert entry["NAME"] == Path("/tmp/shop a.sqlite3")
        assert entry["OPTIONS"]["transaction_mode"] == "IMMEDIATE"

    def test_another_scheme_is_refused(self) -> None:
        with self.assertRaisesMessage(ValueError, "use postgres:// or sqlite://"):
            database_from_url("mysql://localhost/shop")
