"""The project's addresses in the metadata of a build. ``REPOSITORY`` is the address of the public repository."""

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ProjectUrls(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("REPOSITORY", "").rstrip("/")
        metadata["urls"] = (
            {
                "Documentation": os.environ.get("DOCUMENTATION", "") or f"{repository}/tree/main/docs",
                "Source": repository,
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            }
            if repository
            else {}
        )
