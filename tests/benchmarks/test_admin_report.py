"""The report about the admin's pages: every visit, preceded by the visits that were too slow or failed."""

from typing import Any

from benchmarks.admin.report import line, page
from benchmarks.admin.visiting import Visited


def visited(name: str, *milliseconds: float, group: str = "List of jobs", failure: str = "") -> Visited:
    return Visited(group, name, statements=8, first=50.0, milliseconds=list(milliseconds), load=0.5, failure=failure)


def written(*visits: Visited) -> str:
    how: dict[str, Any] = {"date": "2026-11-21", "times": 20, "jobs": 10_000_000}
    run = {"how": how, "machine": {"CPUs": "2"}, "server": {"jit": "on"}, "rows": {"jobs": 10_000_000}}
    return page({**run, "visits": [visit.as_json() for visit in visits]})


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_each_visit_has_its_line_under_its_group() -> None:
    text = written(visited("failed", 10, 20, 30), visited("one step", 5, 5, group="Page of a chain"))
    assert "| failed | 20 | 29 | 0 | 50 | 8 |" in section(text, "List of jobs")
    assert "| one step | 5 | 5 | 0 | 50 | 8 |" in section(text, "Page of a chain")
    assert "| jobs | 10,000,000 |" in section(text, "Table sizes")
    assert "| PostgreSQL: jit | on |" in section(text, "Measured on")


def test_a_visit_over_the_limit_is_listed_first() -> None:
    text = written(visited("quick", 299, 299), visited("slow", 1, 1, 1, 1, 900, 900))
    assert "| List of jobs | slow |" in section(text, "Pages over the limit")
    assert "quick" not in section(text, "Pages over the limit")
    assert written(visited("quick", 299)).count("None.") == 1


def test_a_failed_visit_has_its_reason_and_does_not_count_as_fast() -> None:
    broken = visited("all", failure="UnexpectedResponse: 500 instead of 200")
    assert not broken.is_fast
    assert "500 instead of 200" in section(written(broken), "Pages over the limit")
    assert "FAILED" in line(broken)
