"""The messages in the translation catalogues, and the messages in code and templates."""

import ast
import gettext
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.utils.translation.template import templatize

import django_jobchains

PACKAGE = Path(django_jobchains.__file__).parent
LOCALE = PACKAGE / "locale"

#: The functions that mark messages. No message has a context.
PLURAL = {"ngettext", "ngettext_lazy"}
FUNCTIONS = {"gettext", "gettext_lazy", "gettext_noop", *PLURAL}
_PLACEHOLDER = re.compile(r"%\((\w+)\)|(?<!\{)\{(\w+)\}|(%%)|(%[a-z])")


@dataclass(frozen=True)
class Message:
    """A message in the source. ``plural`` is empty if it has no plural form."""

    text: str
    plural: str = ""

    @property
    def forms(self) -> tuple[str, ...]:
        return (self.text, self.plural) if self.plural else (self.text,)


@dataclass(frozen=True)
class Entry:
    message: Message
    translations: tuple[str, ...]
    flags: frozenset[str]
    is_obsolete: bool = False


def placeholders(text: str) -> set[str]:
    return {found for match in _PLACEHOLDER.finditer(text) for found in match.groups() if found}


# The sources


@cache
def asked_for() -> dict[Message, str]:
    """Return every message, with a file that uses it."""
    found: dict[Message, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found |= dict.fromkeys(of_code(path.read_text()), str(path.relative_to(PACKAGE)))
    for path in sorted((PACKAGE / "templates").rglob("*.html")):
        found |= dict.fromkeys(of_template(path.read_text()), str(path.relative_to(PACKAGE)))
    return found


def of_code(source: str) -> list[Message]:
    if "django.utils.translation" not in source:
        return []
    tree = ast.parse(source)
    names = _aliases(tree)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [_message(names[_name(call)], call) for call in calls if _name(call) in names]


def of_template(source: str) -> list[Message]:
    """Return the messages of a template, which Django converts to calls with other texts between them."""
    return [_message(name, call) for name, call in _calls(templatize(source))]


def words_outside(template: str) -> list[str]:
    """Return the untranslated words of a template, in its text and in attributes that screen readers read."""
    classes = r"{%\s*block (?:coltype|bodyclass)\s*%}.*?{%\s*endblock\s*%}"
    blocks = r"{%\s*(comment|blocktranslate)\b.*?{%\s*end\1\s*%}|{#.*?#}|{%.*?%}|{{.*?}}|&\w+;"
    html = re.sub(blocks, " ", re.sub(classes, " ", template), flags=re.DOTALL)
    read = re.findall(r"\b(?:title|aria-label|alt|placeholder|submit[\"'][^>]* value)=[\"']([^\"']*)", html)
    texts = [*re.split(r"<[^>]*>", html), *read]
    return [word for text in texts for word in re.findall(r"[^\W\d_]+", text)]


def _aliases(tree: ast.Module) -> dict[str, str]:
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = (alias for node in imports if node.module == "django.utils.translation" for alias in node.names)
    return {alias.asname or alias.name: alias.name for alias in ours if alias.name in FUNCTIONS}


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _calls(written: str) -> Iterator[tuple[str, ast.Call]]:
    """Find calls of ``_`` and of the functions. A call ends at the first bracket that completes an expression."""
    for match in re.finditer(r"(?<!\w)(_|n?gettext)\(", written):
        ends = (end.end() for end in re.finditer(r"\)", written[match.start() :]))
        [call] = _first_expression(written[match.start() :], ends)
        yield "gettext" if match[1] == "_" else match[1], call


def _first_expression(text: str, ends: Iterator[int]) -> list[ast.Call]:
    for end in ends:
        try:
            parsed = ast.parse(text[:end], mode="eval").body
        except SyntaxError:
            continue
        assert isinstance(parsed, ast.Call)
        return [parsed]
    return []


def _message(function: str, call: ast.Call) -> Message:
    return Message(*[ast.literal_eval(argument) for argument in call.args[: 1 + (function in PLURAL)]])


# The catalogues


def entries(language: str) -> list[Entry]:
    """Return the entries of the ``.po`` file, without its header."""
    text = (LOCALE / language / "LC_MESSAGES" / "django.po").read_text()
    found = [_entry(block) for block in re.split(r"\n\s*\n", text.strip()) if block.strip()]
    return [entry for entry in found if entry.message.text]


def compiled(language: str) -> gettext.GNUTranslations:
    with (LOCALE / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        return gettext.GNUTranslations(file)


def _entry(block: str) -> Entry:
    flags: set[str] = set()
    fields: dict[str, str] = {}
    field = ""
    is_obsolete = False
    for line in block.splitlines():
        if line.startswith("#,"):
            flags |= {flag.strip() for flag in line[2:].split(",")}
        if line.startswith("#~"):
            is_obsolete, line = True, line[2:].strip()
        if line.startswith("#") or not line:
            continue
        if not line.startswith('"'):
            field, line = line.split(" ", 1)
        fields[field] = fields.get(field, "") + ast.literal_eval(line)
    message = Message(fields.get("msgid", ""), fields.get("msgid_plural", ""))
    translations = tuple(text for name, text in fields.items() if name.startswith("msgstr"))
    return Entry(message, translations, frozenset(flags), is_obsolete)
