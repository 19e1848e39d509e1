"""The compiled catalogues are complete and up to date, and texts are translated when they are shown."""

import ast
import gettext
import re
from functools import cache
from pathlib import Path

import pytest
from django.utils import translation
from django.utils.translation.template import templatize

import django_jobchains
from django_jobchains.text.humanize import age, ago, number, span
from tests.admin import rows
from tests.admin.browsing import open_dashboard
from tests.commands.conftest import run  # noqa: F401 - a fixture
from tests.support.jobs import create

PACKAGE = Path(django_jobchains.__file__).parent
LOCALE = PACKAGE / "locale"
PLURAL = {"ngettext", "ngettext_lazy"}
#: The functions that mark messages. No message has a context.
FUNCTIONS = {"gettext", "gettext_lazy", *PLURAL}

every_language = pytest.mark.parametrize("language", sorted(path.name for path in LOCALE.iterdir()))


def calls_in(source):
    """Yield the calls that mark messages, with the name of the function and the message with its plural."""
    tree = ast.parse(source if "django.utils.translation" in source else "")
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = (alias for node in imports if node.module == "django.utils.translation" for alias in node.names)
    names = {alias.asname or alias.name: alias.name for alias in ours if alias.name in FUNCTIONS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            function = names[node.func.id]
            yield node, function, tuple(map(ast.literal_eval, node.args[: 1 + (function in PLURAL)]))


def messages_of(template):
    """Return the messages of a template, which Django converts to calls with other texts between them."""
    written = templatize(template)
    for match in re.finditer(r"(?<!\w)(_|n?gettext)\(", written):
        for end in re.finditer(r"\)", written[match.start() :]):
            try:
                call = ast.parse(written[match.start() :][: end.end()], mode="eval").body
            except SyntaxError:
                continue
            yield tuple(map(ast.literal_eval, call.args[: 1 + (match[1] == "ngettext")]))
            break


@cache
def messages():
    """Return every message of code and templates: its text and, if it has one, its plural."""
    of_code = (message for path in PACKAGE.rglob("*.py") for *_, message in calls_in(path.read_text()))
    of_templates = (message for path in PACKAGE.rglob("*.html") for message in messages_of(path.read_text()))
    return {*of_code, *of_templates}


def translations(language):
    """Return the translations of each text. A compiled catalogue has none of fuzzy or untranslated texts."""
    with (LOCALE / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        catalogue = gettext.GNUTranslations(file)._catalog  # there is no public access to all entries
    found = {}
    for key, text in catalogue.items():
        if key:  # the header has none
            found.setdefault(key if isinstance(key, str) else key[0], []).append(text)
    return found


def placeholders(text):
    pattern = r"%\((\w+)\)|(?<!\{)\{(\w+)\}|(%%)|(%[a-z])"
    return {found for match in re.finditer(pattern, text) for found in match.groups() if found}


def test_there_is_a_german_catalogue():
    assert (LOCALE / "de").exists()


@every_language
def test_every_text_is_translated_and_no_others_are(language):
    found = translations(language)
    assert {text for text, *_ in messages()} ^ found.keys() == set()
    assert [texts for texts in found.values() if not all(texts)] == []


@every_language
def test_translations_have_the_placeholders_punctuation_and_tags_of_the_text(language):
    """Texts with tags are not escaped, and neither are their translations."""
    found, ends = translations(language), re.compile(r"^(\s*).*?([.:…]?\s*)$", re.DOTALL)
    for message in messages():
        known, least = set.union(*map(placeholders, message)), set.intersection(*map(placeholders, message))
        for text in found[message[0]]:
            # A plural form may omit the count.
            assert least - ({"count", "number"} if message[1:] else set()) <= placeholders(text) <= known, text
            assert ends.fullmatch(text).groups() == ends.fullmatch(message[0]).groups(), text
            assert sorted(re.findall("<[^>]*>|[<>&]", text)) == sorted(re.findall("<[^>]*>|[<>&]", message[0])), text


@every_language
def test_the_compiled_catalogue_is_up_to_date(language):
    source = (LOCALE / language / "LC_MESSAGES" / "django.po").read_text()
    written = {
        ast.literal_eval(f"({text})") for text in re.findall(r'^msgstr(?:\[\d\])? ((?:".*"\n?)+)', source, re.MULTILINE)
    }
    compiled = {text for texts in translations(language).values() for text in texts}
    assert {text for text in written if not text.startswith("Project-Id-Version")} == compiled


def test_templates_have_no_untranslated_texts():
    """In their text, and in attributes that screen readers read."""
    blocks = r"{%\s*(comment|blocktranslate)\b.*?{%\s*end\1\s*%}|{#.*?#}|{%.*?%}|{{.*?}}|&\w+;"
    classes = r"{%\s*block (?:coltype|bodyclass)\s*%}.*?{%\s*endblock\s*%}"
    attributes = r"\b(?:title|aria-label|alt|placeholder|submit[\"'][^>]* value)=[\"']([^\"']*)"
    for path in PACKAGE.rglob("*.html"):
        html = re.sub(blocks, " ", re.sub(classes, " ", path.read_text()), flags=re.DOTALL)
        texts = [*re.split(r"<[^>]*>", html), *re.findall(attributes, html)]
        assert not re.findall(r"[^\W\d_]+", " ".join(texts)), path


def test_texts_are_not_translated_while_modules_are_imported():
    """They would keep the language of the site."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        eager = [call for call, function, _message in calls_in(source) if not function.endswith("_lazy")]
        functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)] if eager else []
        inside = {line for node in functions for line in range(node.lineno, node.end_lineno + 1)}
        assert [call.lineno for call in eager if call.lineno not in inside] == [], path


def test_the_dashboard_is_in_the_language_of_the_user(superuser, store, beat):
    create(store, 3, "shop.lost")
    beat()
    superuser.defaults["HTTP_ACCEPT_LANGUAGE"] = "de"
    assert "Kein Worker bedient Typ shop.lost: 3 Jobs" in open_dashboard(superuser).text


@pytest.mark.django_db
def test_the_terminal_is_always_in_english(run):  # noqa: F811 - the fixture
    [job] = rows.chain(1, "failed")
    rows.lines(job, 2)
    with translation.override("de"):
        lines = run("show", job.chain_id).lines
    assert any(line.endswith("info · line 1") for line in lines)
    assert any("failed · " in line for line in lines)


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ("4.3 s", "1,234 d", "1,234", "in 3 min", "2 h ago")),
        ("de", ("4,3 s", "1.234 d", "1.234", "in 3 min", "vor 2 h")),
    ],
)
def test_numbers_follow_the_language_and_units_do_not(language, expected):
    with translation.override(language):
        assert (span(4.27), age(1234 * 86_400), number(1234), ago(-180), ago(7200)) == expected
