"""Texts that try to become part of a page, for every place that shows texts of users."""

import re
from html.parser import HTMLParser

#: Each runs a script, or adds an element or an attribute, where it is not escaped.
VECTORS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' onmouseover='alert(1)",
    '" autofocus onfocus=alert(1) x="',
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</pre><script>alert(1)</script>",
    "</summary></details><img src=x onerror=alert(1)>",
    "</text></svg><img src=x onerror=alert(1)>",
    "]]><script>alert(1)</script>",
    "--><script>alert(1)</script>",
    "<!--<img src='--><img src=x onerror=alert(1)>'>",
    "<iframe src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "javascript:alert(1)",
    "<details open ontoggle=alert(1)>",
    "<body onload=alert(1)>",
    "<style>@import '//x.example'</style>",
    "<link rel=stylesheet href=//x.example>",
    "<meta http-equiv=refresh content=0;url=//x.example>",
    "<base href=//x.example>",
    "<form action=//x.example><input name=q></form>",
    "{{ request.user.password }}{% debug %}",
    "<math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\u202e<b>x</b>\ufeff",
)


#: Attributes with URLs that a browser loads or opens.
ADDRESSES = ("src", "href", "action", "formaction", "data", "poster", "srcset", "xlink:href")

FORBIDDEN = ("style", "iframe", "base", "object", "embed", "math", "b")


def _leads_elsewhere(tag: str, address: str) -> bool:
    """Return whether an address has a scheme or a host. Links may lead to other sites."""
    found = re.match(r"\s*([a-z][a-z0-9+.-]*:|//)", address, re.IGNORECASE)
    return bool(found) and not (tag == "a" and address.startswith(("http:", "https:")))


class _Page(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.problems = []

    def handle_starttag(self, tag, attrs):
        names = {name: value or "" for name, value in attrs}
        shown = self.get_starttag_text() or tag
        if any(name.startswith("on") or name == "style" for name in names):
            self.problems.append(shown)
        if names.get("src") == "x" or any(_leads_elsewhere(tag, names.get(name, "")) for name in ADDRESSES):
            self.problems.append(shown)
        if tag in ("style", "iframe", "base", "object", "embed", "math", "b") or (
            tag == "script" and "src" not in names
        ):
            self.problems.append(shown)


def problems_of(html):
    """Return the tags that a strict policy forbids, and tags that the texts above would add."""
    page = _Page()
    page.feed(html)
    page.close()
    return page.problems
