"""`.spotwarp/config.yaml`: every option with its default, read strictly, written with its comments.

Precedence: flag, then `SPOTWARP_<OPTION>`, then the file, then the default. Unknown keys are refused with the nearest
one suggested and the line. No secret is ever read from or written to it (I11).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spotwarp import values
from spotwarp.errors import ConfigError

DIRECTORY: Final = ".spotwarp"
FILE: Final = "config.yaml"
_UNSAID: Final = ("key_file", "notify", "notice_url", "notice_command")
"""What may hold a secret though it should not."""
_KEY: Final = "SPOTWARP_KEY"
"""The key of an encrypted repository; no option, since it must not stand in the file."""
_COMMANDS_OWN: Final = "SPOTWARP_NOTICE_FILE"
"""Tells a command of ours where it will find its notice; a SpotWarp started by that command must not watch that."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its name, its default as YAML, how it is read, and the comment above it in the file."""

    name: str
    default: str
    parse: Callable[..., Any]
    comment: str
    layered: bool = False
    """What one source does not name of it, the one beneath says: `parse` gets that value too."""


OPTIONS: Final = (
    Option(
        "remote_path",
        "",
        values.text,
        "Where everything is stored: s3://bucket/prefix, file:///dir or a plain path.\n"
        "Credentials, endpoint and region come from the usual environment variables, never from here.",
    ),
    Option(
        "run",
        "main",
        values.run_name,
        "The run this workspace continues. Another name is another, independent run.",
    ),
    Option(
        "key_file",
        "",
        values.optional,
        "The file with the key of an encrypted repository; SPOTWARP_KEY (a passphrase, or what such a file holds)\n"
        "comes before it. Never the key itself.",
    ),
    Option(
        "interval",
        "auto",
        values.auto_or_duration,
        "How often the workspace is stored besides at every completed checkpoint:\n"
        "auto, or 1s to 24h. auto keeps the cost of a cycle under a tenth of the time.",
    ),
    Option(
        "lease",
        "20s",
        values.bounded(0.5, 3600),
        "A holder that shows no heartbeat for this long may be taken over.",
    ),
    Option(
        "grace",
        "auto",
        values.auto_or_duration,
        "Time from SIGTERM (or a preemption notice without a deadline) to the end of the machine: 1s to 24h, or\n"
        "auto: what the platform usually leaves (RunPod 5s, docker 10s, Kubernetes, Slurm and others 30s).",
    ),
    Option(
        "sync_share",
        "0.5",
        values.share,
        "Part of that time kept for the final sync; the rest is the training command's, to save.",
    ),
    Option(
        "notices",
        "auto",
        values.notice_sources,
        "Whose preemption notices are watched besides SIGTERM: auto (the cloud this machine is found to be in),\n"
        "none, or a list of aws, gcp, azure.",
    ),
    Option(
        "notice_file",
        "",
        values.optional,
        "A file whose appearance is a preemption notice. It may be empty, or say how much time is left:\n"
        '{"seconds_left": 30} or {"deadline": "2030-01-31T12:00:00Z"}. (Only here, not in the environment.)',
    ),
    Option(
        "notice_command",
        "",
        values.optional,
        "A command that is run every notice_every: exit code 0 is no notice, 75 is one, and so is a line of output\n"
        'such as {"seconds_left": 30}. One that does not end is listened to.',
    ),
    Option(
        "notice_url",
        "",
        values.hook_url,
        'An address that is asked every notice_every: {} is no notice, {"seconds_left": 30} is one. No password in it.',
    ),
    Option(
        "notice_every",
        "5s",
        values.bounded(0.5, 3600),
        "The pace of notice_command and notice_url.",
    ),
    Option(
        "service",
        "auto",
        values.auto_or_flag,
        "Whether the command is a server that people work in, whose exit code 0 says nothing of the work: the run is\n"
        "then stopped, never complete. auto: Jupyter, code-server and the like, by their names.",
    ),
    Option(
        "linger",
        "10s",
        values.bounded(0, 86400),
        "How long processes that the command left behind may go on after it has ended.",
    ),
    Option(
        "patience",
        "10m",
        values.bounded(0, 86400),
        "How long the final sync of a command that ended by itself waits for a store that is away.",
    ),
    Option(
        "settle",
        "2s",
        values.bounded(0, 3600),
        "A checkpoint counts as complete when none of its files changed for this long.",
    ),
    Option(
        "recheck",
        "10m",
        values.bounded(1, 7 * 86400),
        "A file that is mapped or held open for writing is read again this often, whatever its time stamps say\n"
        "(they need not move), and always in the last sync and in `spotwarp sync`.",
    ),
    Option(
        "keep_resumable",
        "3",
        values.count(1, 1000),
        "Retention: snapshots of the newest so many resumable checkpoints ...",
    ),
    Option(
        "keep_hourly",
        "24",
        values.count(0, 8760),
        "... and one snapshot per hour, for so many hours.",
    ),
    Option(
        "prune",
        "true",
        values.flag,
        "Delete what retention let go, while running, where the credential may delete.",
    ),
    Option(
        "limits",
        "{cpu: auto, bandwidth: none}",
        values.limits,
        "What storing may use beside the command. cpu: cores for reading, hashing and coding, such as 1.5 or 50%\n"
        "(auto: up to four threads of low priority). bandwidth: of data, each way, such as 200MB/s or 1Gbit/s; the\n"
        "heartbeat never waits for it. Neither counts any more once the machine is about to go. What a variable or a\n"
        "flag does not name stays as it is here; `none` is no limit at all.",
        layered=True,
    ),
    Option(
        "coding",
        "auto",
        values.coding,
        "How tensors are made smaller: raw (not at all), planes (the bytes of numbers apart, where that pays), delta\n"
        "(against the save before), or auto: by what the upload and the coding were measured to take.",
    ),
    Option(
        "prices",
        "{}",
        values.prices,
        "Dollars for `spotwarp status --cost` where the list price is not known or not yours: storage (GB-month), put\n"
        "and get (1000 requests), egress (GB), such as {storage: 0.015, egress: 0}.",
    ),
    Option(
        "log_limit",
        "64MiB",
        values.size,
        "The command's output is kept in .spotwarp/log/, at most this much of it.",
    ),
    Option(
        "notify",
        "[]",
        values.targets,
        "Who is told when the backup stalls or recovers, and when the run is preempted, resumed, failed or done:\n"
        "a shell command (JSON on stdin, facts in SPOTWARP_EVENT...), an http(s) URL (the same JSON as a POST),\n"
        "env:NAME where the variable NAME holds one of these (an address can be a secret), or a list of them.",
    ),
    Option(
        "stall_intervals",
        "3",
        values.count(1, 1000),
        "The backup counts as stalled when it has been failing for so many intervals ...",
    ),
    Option(
        "stall_after",
        "10m",
        values.bounded(1, 86400),
        "... or for this long, whichever comes first.",
    ),
    Option(
        "secrets",
        "[]",
        values.names,
        "Names of environment variables that the command needs. `run` refuses to start while one is empty.\n"
        "Their values are never stored: where the command prints one, the stored log has *** instead.",
    ),
    Option(
        "start_early",
        "256MiB",
        values.never_or_size,
        "Where checkpoints older than the newest resumable one are together at least this large, the command starts\n"
        "before they are restored, and they come in beside it, but for those that the command names. never: it starts\n"
        "when everything is restored.",
    ),
    Option(
        "allow_other_shape",
        "false",
        values.flag,
        "Resume with another number of processes or GPUs than the checkpoint was written by.",
    ),
    Option(
        "single_writer",
        "false",
        values.flag,
        "Use a store without create-if-absent. Nothing then stops two machines from writing one run:\n"
        "you must make sure that there is only ever one.",
    ),
    Option(
        "exclude",
        "[]",
        values.patterns,
        "What not to store, in .gitignore syntax. Always excluded: __pycache__/, SpotWarp's own\n"
        "runtime files, and certain secrets such as .env. Virtual environments are stored unless listed here.",
    ),
)


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force. Durations in seconds, sizes in bytes; None means auto."""

    remote_path: str
    run: str
    interval_s: float | None
    lease_s: float
    grace_s: float | None
    sync_share: float
    notices: tuple[str, ...] | None
    notice_file: str
    notice_command: str
    notice_url: str
    notice_every_s: float
    linger_s: float
    patience_s: float
    settle_s: float
    recheck_s: float
    keep_resumable: int
    keep_hourly: int
    prune: bool
    log_limit: int
    single_writer: bool
    notify: tuple[str, ...] = field(default=(), repr=False)  # an address can be a secret
    stall_intervals: int = 3
    stall_after_s: float = 600.0
    secrets: tuple[str, ...] = ()
    start_early: int | None = 256 << 20
    allow_other_shape: bool = False
    service: bool | None = None
    limits: values.Limits = field(default_factory=values.Limits)
    coding: str | None = None
    """None: by what is measured."""
    prices: values.Prices = field(default_factory=values.Prices)
    key_file: str = ""
    exclude: tuple[str, ...] = field(default=())


_FIELDS: Final = {
    name: f"{name}_s"
    for name in ("interval", "lease", "grace", "notice_every", "linger", "patience", "settle", "recheck", "stall_after")
}


def path_in(workspace: Path) -> Path:
    """Where the config of a workspace is."""
    return workspace / DIRECTORY / FILE


def find_workspace(start: Path) -> Path:
    """The nearest directory at or above `start` that was initialised. Raises `ConfigError`."""
    for directory in (start, *start.parents):
        if path_in(directory).is_file():
            return directory
    raise ConfigError(f"{start} is not a SpotWarp workspace", hint="Run `spotwarp init --remote-path URL` in it first.")


def load(workspace: Path | None, *, env: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Config:
    """The config of `workspace`. `overrides` (flags) win over `env`, which wins over the file; None: no file.

    Raises `ConfigError` with file, line and the nearest known key.
    """
    layers: dict[str, list[tuple[object, str]]] = {option.name: [(option.default, "the default")] for option in OPTIONS}
    path = path_in(workspace) if workspace else None
    given, lines = read(path) if path else ({}, {})
    for name, value in given.items():
        layers[name].append((value, f"{path}, line {lines.get(name, 1)}"))
    for option in OPTIONS:
        variable = f"SPOTWARP_{option.name.upper()}"
        if env.get(variable) and variable != _COMMANDS_OWN:
            value = env[variable].split(":") if option.name == "exclude" else env[variable]
            layers[option.name].append((value, variable))
    for name, value in (overrides or {}).items():
        if value is not None:
            layers[name].append((value, f"--{name.replace('_', '-')}"))
    return Config(**{_FIELDS.get(o.name, o.name): _parsed(o, layers[o.name]) for o in OPTIONS})


def _parsed(option: Option, layers: list[tuple[object, str]]) -> Any:
    """The value in force, of all that were given with their sources, the strongest last. Raises `ConfigError`."""
    found: Any = None
    for value, source in layers if option.layered else layers[-1:]:
        one = [] if value == "[]" == option.default else value
        try:
            found = option.parse(one, found) if option.layered else option.parse(one)
        except ValueError as error:
            shown = "its value" if option.name in _UNSAID else repr(value)
            words = f"{option.name} is empty" if value in (None, "") else f"{option.name}: {shown} {error}"
            raise ConfigError(f"{words} ({source})", hint=option.comment.replace("\n", " ")) from error
    return found


_MOST_TEXT: Final = 256 << 10
_MOST_BRACKETS: Final = 1000


def mistaken(env: Mapping[str, str]) -> list[str]:
    """What is to be said of variables that are no option's but nearly named as one: they do nothing. Never an error,
    since others may have variables of such names. Pure."""
    known = {f"SPOTWARP_{option.name.upper()}" for option in OPTIONS}
    words = []
    for name in sorted(set(env) - known - {_KEY}):
        if not name.startswith("SPOTWARP_"):
            continue
        for near in difflib.get_close_matches(name[9:], [one[9:] for one in known], n=1, cutoff=0.8):
            words.append(f"the variable {name} is not known and does nothing; did you mean SPOTWARP_{near}?")
    return words


def read(path: Path) -> tuple[dict[str, object], dict[str, int]]:
    """Keys and values of the file, and the line of each key. Raises `ConfigError`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path.parent.parent} is not a SpotWarp workspace", hint="Run `spotwarp init --remote-path URL` first."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", hint="`spotwarp init` writes a new one when it is moved away."
        ) from error
    try:
        # What nests this deep, or is this long, would only keep the parser busy.
        sane = len(text) <= _MOST_TEXT and text.count("[") + text.count("{") <= _MOST_BRACKETS
        data = YAML(typ="rt").load(text) if sane else None
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(
            f"{path}, line {line}: {error.problem}", hint="Mend that line; nothing was changed."
        ) from error
    except (YAMLError, ValueError, RecursionError):
        data = None  # not even text, or nothing that a person wrote
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path} is empty or damaged", hint="Move it away and run `spotwarp init --remote-path URL` again."
        )
    lines = {str(key): data.lc.key(key)[0] + 1 for key in data}  # type: ignore[attr-defined]  # ruamel's own dict
    known = [option.name for option in OPTIONS]
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            raise ConfigError(
                f"{path}, line {lines[str(key)]}: unknown option {str(key)!r}",
                hint=f"Did you mean {near[0]!r}?" if near else f"Known options: {', '.join(known)}.",
            )
    return {str(k): v for k, v in data.items()}, lines


def render(values: Mapping[str, object]) -> str:
    """The text of a new config file: every option with its comment and its default, or the given value."""
    parts = ["# SpotWarp. Every option stands here with its default; `spotwarp run --help` says how to override one.\n"]
    for option in OPTIONS:
        comment = "".join(f"# {line}\n" for line in option.comment.split("\n"))
        parts.append(f"\n{comment}{option.name}:{_yaml(values.get(option.name, None), option.default)}\n")
    return "".join(parts)


def _yaml(value: object, default: str) -> str:
    if value is None:
        return " " + (default or '""')
    if isinstance(value, bool):
        return " true" if value else " false"
    if isinstance(value, (list, tuple)):
        return "".join(f"\n  - {_quoted(str(v))}" for v in value) or " []"
    return " " + _quoted(str(value))


def _quoted(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9/][A-Za-z0-9_./+@=:-]*", text) and ": " not in text and not text.endswith(":"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
