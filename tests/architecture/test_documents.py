"""Links in the documents lead somewhere, and nothing tracked tells where it was made."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)

# In pieces, so that this file does not find itself.
FORBIDDEN = re.compile(
    "|".join(
        [
            r"(?<![\w.~}-])/" + r"work/",
            r"(?<![\w.~}-])/" + r"root/",
            r"/" + r"opt/(?:pypi|wheels)",
            r"files\." + r"pythonhosted",
            r"pypi\." + r"org/simple",
            r"--" + r"(?:extra-)?index-url",
        ]
    )
)


def _tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    return [path for name in listing.split(b"\0") if name and (path := ROOT / name.decode()).is_file()]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


TRACKED = _tracked()


def _anchors(document: Path) -> set[str]:
    """The anchors that a forge gives to headings: lower case, no punctuation, dashes for blanks."""
    titles = [match["title"] for match in HEADING.finditer(document.read_text())]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", [path for path in TRACKED if path.suffix == ".md"], ids=_name)
def test_links_lead_somewhere(document: Path) -> None:
    dead = []
    for link in LINK.finditer(CODE.sub("", document.read_text())):
        path, _, anchor = link["target"].partition("#")
        if ":" in path:
            continue  # another site: not this test's to reach
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            dead.append(link["target"])
    assert dead == []


def test_nothing_tracked_tells_where_it_was_made() -> None:
    found = []
    for path in TRACKED:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a binary fixture
        found += [f"{_name(path)}: {match[0]}" for match in FORBIDDEN.finditer(text)]
    assert found == []
