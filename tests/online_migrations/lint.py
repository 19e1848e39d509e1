"""Which SQL of a migration is harmless to tables in use on PostgreSQL. Everything else is a problem."""

import re
from collections.abc import Iterator

_CONSTANT = r"(?:'[^']*'(?:::\w+)?|-?[\d.]+|true|false|NULL)"
_TYPE = r"[a-z ]+(?:\(\d+(?:, \d+)?\))?"

#: On any table: these block nobody for long.
_FREE = (
    r"BEGIN|COMMIT",
    r'CREATE TABLE "\w+" .*',
    r'(CREATE|DROP) INDEX CONCURRENTLY .*|ALTER INDEX "\w+" RENAME TO "\w+"',
)
_LOCK_TIMEOUT = r"SET LOCAL lock_timeout = '\w+'"
#: These lock a table for a moment, once they have its lock; they neither rewrite nor read it.
_SHORT = (
    r'ALTER TABLE "\w+" (RE)?SET \([^)]*\)',
    rf'ALTER TABLE "\w+" ADD COLUMN "\w+" {_TYPE} NULL',
    rf'ALTER TABLE "\w+" ADD COLUMN "\w+" {_TYPE} DEFAULT {_CONSTANT} (NOT )?NULL',
    r'ALTER TABLE "\w+" ALTER COLUMN "\w+" DROP (DEFAULT|NOT NULL)',
    r'ALTER TABLE "\w+" ADD CONSTRAINT .* NOT VALID',
    r'(CREATE|CREATE OR REPLACE|ALTER|DROP) VIEW "\w+".*',
)
#: Of tables that the migration creates, and which are empty.
_NEW_INDEX = r'CREATE (?:UNIQUE )?INDEX "\w+" ON "(\w+)" .*'
_NEW_CONSTRAINT = r'ALTER TABLE "(\w+)" (?:ADD CONSTRAINT|SET) .*'


def problems(sql: str) -> Iterator[str]:
    """The statements of ``sqlmigrate`` that would hold up those who use the tables."""
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


def _matches(pattern: str, statement: str) -> bool:
    return re.fullmatch(pattern, statement, re.DOTALL) is not None


def _is_of(tables: set[str], pattern: str, statement: str) -> bool:
    found = re.fullmatch(pattern, statement, re.DOTALL)
    return found is not None and found[1] in tables
