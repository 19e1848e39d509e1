"""What a build knows only when it runs: ``REPOSITORY`` is the address of the public repository."""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https://|#)([^)]+)\)")


class ReleaseMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("REPOSITORY", "").rstrip("/")
        readme = (Path(self.root) / "README.md").read_text()
        metadata["urls"] = {}
        if repository:
            metadata["urls"] = {
                "Documentation": os.environ.get("DOCUMENTATION", "") or f"{repository}/tree/main/docs",
                "Source": repository,
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            }
            readme = with_addresses(readme, repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def with_addresses(readme: str, repository: str) -> str:
    """Replace relative links and pictures, because a package index shows the README without the files around it."""

    def replace(found: re.Match[str]) -> str:
        picture, text, path = found.groups()
        return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/main/{path})"

    return RELATIVE_LINK.sub(replace, readme)
