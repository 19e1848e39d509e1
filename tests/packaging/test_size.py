"""The package stays small enough to know: docs/decisions/0050-size-of-the-package.md.

A line of code is one with a token that is neither a comment nor part of a docstring.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import django_jobchains

PACKAGE = Path(django_jobchains.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
#: Lines of code of each entry at the root of the package. An entry may exceed its budget by a twentieth. A change that
#: makes one smaller lowers its budget.
BUDGETS = {
    "worker": 5833,
    "store": 5756,
    "admin": 4566,
    "cli": 2033,
    "telemetry": 1825,
    "children": 1638,
    "attempts": 1532,
    "notifications": 1797,
    "declare": 1831,
    "testing": 990,
    "records": 974,
    "chains": 657,
    "models": 902,
    "handlers": 539,
    "monitoring": 795,
    "db": 700,
    "text": 518,
    "migrations": 627,
    "payloads": 612,
    "management": 417,
    "middleware": 320,
    "exceptions": 259,
    "conf": 215,
    "values": 156,
    "isolation": 121,
    "contrib": 111,
    "http_retries": 42,
    "context": 65,
    "statuses": 53,
    "queues": 52,
    "limits": 73,
    "pools": 46,
    "templatetags": 31,
    "__init__": 55,
    "processors": 38,
    "apps": 36,
    "pytest_plugin": 21,
    "tasks_backend": 669,
    "schedules": 382,
}
MAX_CODE = 39_093
MAX_LINES = 55_279
MAX_FILES = 260
MAX_LINES_OF_A_FILE = 700
#: The number of private functions of up to three lines that are called in one place.
MAX_SHORT_FUNCTIONS = 25
IGNORED_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def test_no_entry_exceeds_its_budget() -> None:
    code = Counter[str]()
    for path in FILES:
        code[path.relative_to(PACKAGE).parts[0].removesuffix(".py")] += code_lines(path)
    assert code.keys() == BUDGETS.keys()
    assert not {name: lines for name, lines in code.items() if lines > BUDGETS[name] * 1.05}


def test_the_package_is_small() -> None:
    assert sum(map(code_lines, FILES)) <= MAX_CODE
    assert sum(len(path.read_text().splitlines()) for path in FILES) <= MAX_LINES
    assert len(FILES) <= MAX_FILES
    assert not [path for path in FILES if len(path.read_text().splitlines()) > MAX_LINES_OF_A_FILE]


def test_few_short_functions_have_one_caller() -> None:
    """Reading such a function is a jump that explains nothing, unless its name says what its body does not.

    A function that is passed to another one does not count.
    """
    text = "\n".join(path.read_text() for path in FILES)
    names, calls = Counter(re.findall(r"\b_\w+", text)), Counter(re.findall(r"(?<!def )\b(_\w+)\(", text))
    short = [name for path in FILES for name in short_private_functions(tree(path)) if names[name] == 2 and calls[name]]
    assert len(short) <= MAX_SHORT_FUNCTIONS


def test_no_modules_import_each_other() -> None:
    """Not even for type checkers: two modules that need each other's types are one.

    The package's own ``__init__`` names what it imports at the first use.
    """
    graph = {module(path): set(imports(path)) for path in FILES if path != PACKAGE / "__init__.py"}
    TopologicalSorter(graph).prepare()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def code_lines(path: Path) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        node.body[0] for node in ast.walk(tree(path)) if isinstance(node, documented) and ast.get_docstring(node)
    ]
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in IGNORED_TOKENS:
            lines.update(range(token.start[0], token.end[0] + 1))
    for docstring in docstrings:
        lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def short_private_functions(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(r"_[^_]", each.name):
            body = each.body[1:] if ast.get_docstring(each) else each.body
            if not each.decorator_list and body and (body[-1].end_lineno or 0) - body[0].lineno < 3:
                yield each.name


def module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Yield the modules of the package that a file imports at its top, also only for type checkers."""
    names = {module(each) for each in FILES}
    for node in top_level(tree(path).body):
        if isinstance(node, ast.ImportFrom) and node.module and node.module in names:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & names
            yield from submodules or {node.module}


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from top_level(node.body)
