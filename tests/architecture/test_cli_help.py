"""Every verb explains itself, with examples that the parser accepts.

An example is a line of a verb's help or epilog that begins with `spotwarp VERB`, with or without a `$` before it;
what follows two blanks and a `#` is a remark.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from spotwarp.cli.app import app

EXAMPLE = re.compile(r"^\s*(?:\$ )?(?P<line>spotwarp .+?)(?:  +#.*)?$", re.MULTILINE)


def _verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, child in getattr(command, "commands", {}).items():
        if hasattr(child, "commands"):
            yield from _verbs(child, (*path, name))
        elif not child.hidden:
            yield (*path, name), child


ROOT = get_command(app)
VERBS = list(_verbs(ROOT))
each_verb = pytest.mark.parametrize(("path", "verb"), VERBS, ids=[" ".join(path) for path, _ in VERBS])


def _examples(path: tuple[str, ...], verb: Any) -> list[list[str]]:
    text = f"{verb.help or ''}\n{verb.epilog or ''}"
    lines = [shlex.split(match["line"])[1:] for match in EXAMPLE.finditer(text)]
    return [words for words in lines if tuple(words[: len(path)]) == path]


def test_there_are_verbs() -> None:
    assert {"init", "run"} <= {path[0] for path, _ in VERBS}


@each_verb
def test_a_verb_says_what_it_does(path: tuple[str, ...], verb: Any) -> None:
    first = (verb.help or "").strip().partition("\n")[0]
    assert len(first) >= 15, "the first line of the help is what the list of verbs shows"


@each_verb
def test_a_verb_has_examples_and_the_parser_takes_them(path: tuple[str, ...], verb: Any) -> None:
    examples = _examples(path, verb)
    assert examples, f"no line of the help begins with 'spotwarp {' '.join(path)}'"
    for words in examples:
        verb.make_context(" ".join(path), list(words[len(path) :]))  # raises on an unknown option or a missing argument


@each_verb
def test_every_option_and_argument_is_explained(path: tuple[str, ...], verb: Any) -> None:
    silent = [p.name for p in verb.params if not getattr(p, "help", None) and not getattr(p, "hidden", False)]
    assert silent == []
