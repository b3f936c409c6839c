"""The training command: given or recorded, with the checkpoint put in, and the environment it sees. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from spotwarp.errors import UsageError
from spotwarp.persistence.runlog.entry import Claim

MARK = "{checkpoint}"
_CONTEXT = 3

SERVERS = {
    "code-server",
    "jupyter-lab",
    "jupyter-notebook",
    "jupyter-server",
    "jupyterhub-singleuser",
    "openvscode-server",
}
"""Programs that serve people until somebody quits them: no work of theirs is ever done."""
_WITH_VERB = {"jupyter": {"lab", "notebook", "server"}, "marimo": {"edit"}, "tensorboard": {""}}
_BEFORE = {"exec", "nohup", "env", "sudo", "run", "uv", "uvx", "poetry", "pixi"}


@dataclass(frozen=True, slots=True)
class Command:
    """What to run: one `bash -c` string (`shell`) or an argument vector, in `cwd` (relative to the workspace)."""

    words: tuple[str, ...]
    shell: bool
    cwd: str
    resume_args: str | None = None

    def shown(self) -> str:
        """For people."""
        return self.words[0] if self.shell and self.words else shlex.join(self.words)


def serves(command: Command) -> bool:
    """Whether the command is a server that people work in (Jupyter, VS Code), judged by the name of its last part."""
    try:
        words = _last_part(command.words[0]) if command.shell else list(command.words)
    except ValueError:
        return False  # quotes that only a shell makes sense of
    while words and (words[0] in _BEFORE or "=" in words[0] or words[0].startswith("-")):
        words = words[1:]
    if len(words) > 2 and words[0].rpartition("/")[2].startswith("python") and words[1] == "-m":
        words = [words[2].replace("jupyterlab", "jupyter-lab"), *words[3:]]
    if not words:
        return False
    name = words[0].rpartition("/")[2]
    verbs = [word for word in words[1:] if not word.startswith("-")]
    return name in SERVERS or (verbs[0] if verbs else "") in _WITH_VERB.get(name, ())


def _last_part(line: str) -> list[str]:
    """The words of the last simple command of a shell's line. Raises `ValueError`."""
    lexer = shlex.shlex(line.strip().replace("\n", ";").rstrip("; "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        words = [] if word and set(word) <= set(";&|()") else [*words, word]
    return words


def resolve(
    given: tuple[str, ...], *, shell: bool, cwd: str, resume_args: str | None, recorded: Claim | None
) -> Command:
    """The command given, else the one recorded in the run, each with what it gets more on a resume.

    Raises `UsageError` when there is neither.
    """
    if given and any(given):
        return Command(given, shell, cwd, resume_args)
    if given:
        raise UsageError("the command is empty", hint="spotwarp run --command 'python train.py'")
    if recorded is not None and recorded.command:
        return Command(recorded.command, recorded.shell, recorded.cwd, resume_args or recorded.resume_args or None)
    raise UsageError(
        "no command was given and the run has none recorded yet", hint="spotwarp run --command 'python train.py'"
    )


def with_checkpoint(command: Command, checkpoint: str | None) -> str | list[str]:
    """What to start: `{checkpoint}` replaced by the newest resumable checkpoint's path, `resume_args` added if there
    is one.

    Without a checkpoint the mark becomes empty and `resume_args` are left out. In a shell string the path is quoted.
    """
    resume_args = command.resume_args
    if command.shell:
        path = shlex.quote(checkpoint) if checkpoint else ""
        text = command.words[0].replace(MARK, path)
        return f"{text} {resume_args.replace(MARK, path)}" if resume_args and checkpoint else text
    words = [w.replace(MARK, checkpoint or "") for w in command.words]
    if resume_args and checkpoint:
        words += [w.replace(MARK, checkpoint) for w in shlex.split(resume_args)]
    return words


def environment(
    inherited: Mapping[str, str], *, run: str, generation: int, resumed: bool, checkpoint: str | None
) -> dict[str, str]:
    """What the command sees of SpotWarp, over what it inherits."""
    return {
        **inherited,
        "SPOTWARP_RUN_ID": run,
        "SPOTWARP_GENERATION": str(generation),
        "SPOTWARP_RESUMED": "1" if resumed else "0",
        "SPOTWARP_LAST_CHECKPOINT": checkpoint or "",
    }


def difference(was: Command, now: Command) -> tuple[str, ...]:
    """How two commands differ: a line for the old one and one for the new; long runs of equal words are left out.

    Empty where they do not differ.
    """
    if (was.words, was.shell) == (now.words, now.shell):
        return ()
    old, new = _words(was), _words(now)
    before: list[str] = []
    after: list[str] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal" and b - a > 2 * _CONTEXT:
            same = [*old[a : a + _CONTEXT], "...", *old[b - _CONTEXT : b]]
            before, after = before + same, after + same
        else:
            before, after = before + old[a:b], after + new[c:d]
    return f"command was: {' '.join(before)}", f"command is:  {' '.join(after)}"


def _words(command: Command) -> list[str]:
    return command.words[0].split() if command.shell and command.words else list(command.words)
