"""One look at the names of a directory never misses what a look at each would find."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwarp.errors import ConfigError
from spotwarp.persistence.excludes import DEFAULTS, Excludes

NAMES = st.text(st.sampled_from("ab.-_é\udce9 \n~"), min_size=1, max_size=4) | st.sampled_from(
    [".env", ".env.local", "id_rsa", ".ssh", "__pycache__", "config.json", "a.log", "x.pyc"]
)
PIECES = st.text(st.sampled_from("ab.-_é\udce9 *?[]!~\\"), min_size=1, max_size=5) | st.sampled_from(
    ["*.log", "**", "[!a]", "a**b", ".env*", "*.py[co]", "__pycache__"]
)
PATTERNS = st.tuples(
    st.sampled_from(["", "", "!", "/", "**/"]), st.lists(PIECES, min_size=1, max_size=3), st.sampled_from(["", "/"])
).map(lambda parts: parts[0] + "/".join(parts[1]) + parts[2])


@settings(max_examples=150)
@given(
    st.lists(PATTERNS, max_size=3), st.booleans(), st.lists(NAMES, max_size=3), st.lists(NAMES, min_size=1, max_size=4)
)
def test_what_may_not_be_excluded_is_not(
    patterns: list[str], defaults: bool, above: list[str], names: list[str]
) -> None:
    try:
        rule = Excludes(patterns, defaults=DEFAULTS if defaults else ())
    except ConfigError:
        return
    directory = os.fsencode("/".join(above))
    if rule.may_exclude(directory, names):
        return
    for name in names:
        path = directory + b"/" + os.fsencode(name)
        assert not rule.excluded(path, False)
        assert not rule.excluded(path, True)


def test_one_look_is_enough_for_common_patterns() -> None:
    rule = Excludes(["venv/", "*.tmp", "/data/raw/", "/scratch"])
    assert not rule.may_exclude(b"src/pkg", ["a.py", "b.py", "environment"])
    assert rule.may_exclude(b"src/pkg", ["a.py", "b.tmp"])
    assert rule.may_exclude(b"src/pkg", ["a.py", ".env"])
    assert rule.may_exclude(b"data", ["raw"])
