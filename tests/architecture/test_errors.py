"""The error tree that is drawn at the top of `errors.py` is the tree that is there, exit codes included."""

from __future__ import annotations

import inspect
import re

from spotwarp import errors
from spotwarp.errors import SpotWarpError

# A line of the drawing: bars, a name, perhaps a number. A name's column gives its depth.
NODE = re.compile(r"^(?P<bars>[ │├└]*)(?P<name>[A-Z]\w+)(?: +(?P<code>\d+))?(?:  .*)?$")


def _drawn() -> dict[str, tuple[str, int]]:
    """Name → (name of its parent, exit code), as drawn."""
    tree: dict[str, tuple[str, int]] = {}
    above: list[tuple[int, str]] = []
    drawing = (errors.__doc__ or "").split("\n\n")[1]
    for line in drawing.splitlines():
        node = NODE.match(line)
        assert node, f"not a node: {line!r}"
        column = node.start("name")
        while above and above[-1][0] >= column:
            above.pop()
        tree[node["name"]] = (above[-1][1] if above else "Exception", int(node["code"] or 1))
        above.append((column, node["name"]))
    return tree


def _defined() -> dict[str, tuple[str, int]]:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, SpotWarpError)]
    return {c.__name__: (c.__bases__[0].__name__, c.exit_code) for c in classes}


def test_the_drawn_tree_is_the_tree() -> None:
    assert _drawn() == _defined()


def test_every_error_is_in_the_tree() -> None:
    raisable = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, BaseException)]
    assert [c.__name__ for c in raisable if not issubclass(c, SpotWarpError)] == []


def test_no_error_looks_like_success_or_like_a_preemption() -> None:
    assert {code for _, code in _defined().values()} & {0, 75} == set()
