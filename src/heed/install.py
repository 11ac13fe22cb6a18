"""The command that installs missing packages, for the way in which heed itself was installed."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# The name on the package index, where `heed` is another project.
DISTRIBUTION = "heed-attention"


def how_to_install(extra: str) -> str:
    """Return the command, a line for a shell, that installs heed again, from its source, with the packages of an extra.

    Example:
        >>> how_to_install("demo").startswith("pip install ")
        True
    """
    origin = _origin()
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        from urllib.request import url2pathname

        folder = Path(url2pathname(urlsplit(url).path))
        if folder.is_dir():
            editable = "-e " if origin["dir_info"].get("editable") else ""
            return f"pip install {editable}{shlex.quote(f'{folder}[{extra}]')}"
    elif "vcs_info" in origin:
        info = origin["vcs_info"]
        source = f"{info['vcs']}+{url}@{info.get('requested_revision') or info['commit_id']}"
        return f"pip install {shlex.quote(f'{DISTRIBUTION}[{extra}] @ {source}')}"
    return f"pip install {shlex.quote(f'{DISTRIBUTION}[{extra}]')}"


def _origin() -> dict[str, Any]:
    """Return the installer's record of the source (PEP 610); empty if it came from an index."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        found = json.loads(text or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
