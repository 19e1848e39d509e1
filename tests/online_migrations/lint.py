"""Checks that the SQL of a migration does not block tables in use on PostgreSQL. Unknown statements are problems."""

import re

_CONSTANT = r"(?:'[^']*'(?:::\w+)?|-?[\d.]+|true|false|NULL)"
_TYPE = r"[a-z ]+(?:\(\d+(?:, \d+)?\))?"

#: Statements that block no other session for long, on any table.
_FREE = (
    r"BEGIN|COMMIT",
    r'CREATE TABLE "\w+" .*',
    r'(CREATE|DROP) INDEX CONCURRENTLY .*|ALTER INDEX "\w+" RENAME TO "\w+"',
)
_LOCK_TIMEOUT = r"SET LOCAL lock_timeout = '\w+'"
#: Statements that hold a table's lock only for a moment: they neither rewrite nor read it. They need a lock_timeout.
_SHORT = (
    r'ALTER TABLE "\w+" (RE)?SET \([^)]*\)',
    rf'ALTER TABLE "\w+" ADD COLUMN "\w+" {_TYPE} NULL',
    rf'ALTER TABLE "\w+" ADD COLUMN "\w+" {_TYPE} DEFAULT {_CONSTANT} (NOT )?NULL',
    r'ALTER TABLE "\w+" ALTER COLUMN "\w+" DROP (DEFAULT|NOT NULL)',
    # This rewrites the table, which is empty: 0001 has just created it.
    r'ALTER TABLE "django_jobchains_keylock" SET UNLOGGED',
    r'ALTER TABLE "\w+" ADD CONSTRAINT .* NOT VALID',
    r'(CREATE|CREATE OR REPLACE|ALTER|DROP) VIEW "\w+".*',
)
#: Allowed for tables that the migration itself creates, because they are empty.
_NEW_INDEX = r'CREATE (?:UNIQUE )?INDEX "\w+" ON "(\w+)" .*'
_NEW_CONSTRAINT = r'ALTER TABLE "(\w+)" (?:ADD CONSTRAINT|SET) .*'


def problems(sql):
    """Yield a message for each statement of ``sqlmigrate``'s output that could block users of the tables."""
    statements = [statement.strip() for statement in re.sub("--.*", "", sql).split(";") if statement.strip()]
    new = {name for statement in statements for name in re.findall(r'^CREATE TABLE "(\w+)"', statement)}
    is_limited = False
    for statement in statements:
        is_limited |= _matches(_LOCK_TIMEOUT, statement)
        is_short = _matches("|".join(_SHORT), statement) or _is_of(new, _NEW_CONSTRAINT, statement)
        if is_short and not is_limited:
            yield f"waits for a lock without a lock_timeout: {statement}"
        if not (
            is_short or _matches("|".join((*_FREE, _LOCK_TIMEOUT)), statement) or _is_of(new, _NEW_INDEX, statement)
        ):
            yield f"rewrites or locks a table, or is not known: {statement}"


def _matches(pattern, statement):
    return re.fullmatch(pattern, statement, re.DOTALL) is not None


def _is_of(tables, pattern, statement):
    found = re.fullmatch(pattern, statement, re.DOTALL)
    return found is not None and found[1] in tables
