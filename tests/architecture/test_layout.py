"""The shape of the source: sizes, names, and deciders that cannot act."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "spotwarp"
MODULES = sorted(SOURCE.rglob("*.py"))

MOST_LINES = 500
MOST_LINES_OF_A_FUNCTION = 80
ATTICS = {"utils", "util", "helpers", "helper", "common", "misc"}
EMPTY_WORDS = ("Manager", "Helper", "Handler")

# Deciders: from what is known to what to do. Whoever wants to act, wait or look at a clock is a doer.
DECIDERS = [
    "execution/supervisor.py",
    "persistence/backup/concurrency.py",
    "persistence/backup/policy.py",
    "persistence/retention.py",
    "persistence/runlog/fold.py",
    "persistence/view.py",
]
HANDS = {
    "asyncio", "concurrent", "ctypes", "io", "multiprocessing", "os", "pathlib", "queue", "random", "secrets", "shutil",
    "signal", "socket", "subprocess", "tempfile", "threading", "time",
    "spotwarp.clock", "spotwarp.config", "spotwarp.events", "spotwarp.execution", "spotwarp.persistence.store",
    "spotwarp.retry",
}  # fmt: skip


def _name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_file_fits_in_a_head(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_function_fits_on_a_page(path: Path) -> None:
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    assert [f.name for f in functions if (f.end_lineno or 0) - f.lineno >= MOST_LINES_OF_A_FUNCTION] == []


def test_there_is_no_attic() -> None:
    assert [_name(path) for path in MODULES if path.stem in ATTICS or path.parent.name in ATTICS] == []


def test_names_say_what_a_thing_is() -> None:
    classes = [n for path in MODULES for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ClassDef)]
    assert [c.name for c in classes if c.name.endswith(EMPTY_WORDS)] == []


@pytest.mark.parametrize("name", DECIDERS)
def test_a_decider_has_no_hands(name: str) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse((SOURCE / name).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert [i for i in sorted(imported) if any(f"{i}.".startswith(f"{hand}.") for hand in HANDS)] == []
