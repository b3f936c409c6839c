"""macOS and Windows, as far as Linux can play them: what a system lacks is taken away, and what is left must do.

Other people's libraries are imported before that: they come in builds of their own for each system.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Done, Machine
from spotwarp.testing.seaweed import Seaweed

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]

FOREIGN = """
import os, signal, socket, sys
import concurrent.futures, multiprocessing, ssl, subprocess, sysconfig, tempfile, urllib.request, zipfile
import blake3, msgspec, numpy, obstore.store, pathspec, psutil, rich.console, rich.progress, rich.table, ruamel.yaml
import typer.main, zstandard
system = sys.argv.pop(1)
sysconfig.get_config_vars(), tempfile.gettempdir()
MODULES = {"fcntl", "pty", "termios", "tty", "resource", "pwd", "grp"} if system != "macos" else set()
LINUX = ("O_TMPFILE", "O_NOATIME", "O_DIRECT", "pidfd_open", "memfd_create", "posix_fadvise", "posix_fallocate",
    "sched_getaffinity", "copy_file_range")
POSIX = ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "getuid", "geteuid", "getgid", "getsid", "getpgrp",
    "killpg", "setsid", "fork", "posix_spawn", "openpty", "fwalk", "mkfifo", "chown", "fchown", "lchown", "waitid",
    "statvfs", "uname", "sync", "nice", "pread", "pwrite", "preadv", "tcgetpgrp", "getloadavg", "fchmod")
SIGNALS = ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGWINCH", "SIGTSTP", "SIGKILL", "SIGSTOP", "SIGCHLD", "SIGPIPE",
    "SIGTTIN", "SIGTTOU", "SIGBUS", "pthread_sigmask")
GONE = {
    "bare": [(os, ("O_DIRECTORY", "fwalk", "openpty"))],
    "macos": [(os, LINUX), (signal, ("pidfd_send_signal",))],
    "windows": [(os, LINUX + POSIX), (signal, SIGNALS + ("pidfd_send_signal",)), (socket, ("AF_UNIX",))],
}[system]

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ImportError(f"no module {name!r} on this system")

sys.meta_path.insert(0, Missing())
for name in MODULES:
    sys.modules.pop(name, None)
for module, names in GONE:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = {"bare": "linux", "macos": "darwin", "windows": "win32"}[system]
from spotwarp.__main__ import main
sys.exit(main())
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "foreign.py"
    path.write_text(FOREIGN)
    return path


def on(system: str, program: Path, machine: Machine, *words: str, code: int = 0) -> Done:
    """`spotwarp WORDS` as if on `system`."""
    # The last words of the line are `python -m spotwarp WORDS`: the first three of those give way to ours.
    line = 'while [ "$1" != spotwarp ]; do shift; done; shift; exec "$PYTHON" -P "$PROGRAM" "$SYSTEM" "$@"'
    env = {"PYTHON": sys.executable, "PROGRAM": str(program), "SYSTEM": system}
    return machine(*words, under=["sh", "-c", line, "-"], env=env, code=code)


@pytest.fixture
def stored(rent: Rent, s3_url: str, seaweed_server: Seaweed) -> Machine:
    """A workspace with one attempt behind it, in a bucket."""
    machine = rent(remote=s3_url, env=seaweed_server.env()).init()
    machine.file("model", "weights")
    machine("run", "--command", "seq 1 3; exit 3", code=3)
    return machine


@pytest.mark.parametrize("system", ["bare", "macos", "windows"])
def test_what_reads_and_keeps_house_works_there(stored: Machine, program: Path, system: str) -> None:
    assert b"stopped" in on(system, program, stored, "status").out
    assert b"model" not in on(system, program, stored, "snapshots", "--json").out
    assert on(system, program, stored, "runs", "--json").json[0]["run"] == "main"
    assert on(system, program, stored, "logs").out == b"1\n2\n3\n"
    assert on(system, program, stored, "check", "--read-data", "--json").json["problems"] == []
    on(system, program, stored, "prune")
    on(system, program, stored, "exclude", "*.tmp")
    assert b"nothing to stop" in on(system, program, stored, "stop").out
    assert "hint:" in on(system, program, stored, "attach", code=10).err
    place = stored.path.with_name("out")
    if system == "windows":
        refused = on(system, program, stored, "restore", "--to", str(place), code=19).err
        assert "needs Linux or macOS" in refused
        assert not place.exists()
    else:
        on(system, program, stored, "restore", "--to", str(place))
        assert (place / "model").read_text() == "weights"


@pytest.mark.parametrize("system", ["macos", "windows"])
def test_what_runs_commands_says_that_it_needs_linux(stored: Machine, program: Path, system: str) -> None:
    for words, code in (
        (("run", "--command", "touch never"), 125),
        (("run", "--detach", "--command", "touch never"), 125),
        (("sync",), 19),
    ):
        refused = on(system, program, stored, *words, code=code).err
        assert "needs Linux" in refused
        assert "hint:" in refused
    assert not (stored.path / "never").exists()
    assert stored.facts("status")["generation"] == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_the_verbs(ws: Machine, shell: str) -> None:
    """Each shell's script; `--show-completion` prints the one of the shell that it is called from."""
    script = ws(env={"_SPOTWARP_COMPLETE": f"source_{shell}"}).out
    assert b"_SPOTWARP_COMPLETE" in script
