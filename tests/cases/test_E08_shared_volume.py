"""E08: a volume without file locks, on one machine and under two. Never silently unlocked: the bucket is the lock."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine
from spotwarp.testing.pytest_product import bucket, rent, ws

__all__ = ["bucket", "rent", "ws"]

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow

WAITS = "touch ready; until test -e go; do sleep 0.05; done; exit 3"
SOURCE = "#include <errno.h>\nint flock(int fd, int op) {{ errno = {code}; return -1; }}\n"


@pytest.fixture(params=[errno.ENOSYS, errno.ENOLCK], ids=["ENOSYS", "ENOLCK"])
def no_flock(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a system whose volumes know no flock."""
    source, library = tmp_path / "noflock.c", tmp_path / "noflock.so"
    source.write_text(SOURCE.format(code=request.param))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library)}


def test_E08_two_on_one_machine_are_kept_apart_without_flock(ws: Machine, no_flock: dict[str, str]) -> None:
    program = ws.start("run", "--command", WAITS, env=no_flock)
    program.until((ws.path / "ready").exists)
    assert "has no locks" in program.err
    for words, code in ((("run", "--command", "touch second"), 125), (("restore",), 11)):
        refused = ws(*words, code=code, env=no_flock)
        assert f"process {program.process.pid}, since" in refused.err
    assert ws("sync", "--json", env=no_flock).json["generation"] == 1  # requests go through
    ws.file("go", "")
    program.end(3)
    assert not (ws.path / "second").exists()
    ws("run", "--command", "exit 4", code=4, env=no_flock)


@pytest.mark.deep  # network namespaces: root
def test_E08_two_machines_with_one_volume_are_kept_apart_by_the_bucket(ws: Machine, no_flock: dict[str, str]) -> None:
    def pod(name: str) -> dict[str, object]:
        """Another network, process and host namespace, as another pod has them; the volume is the same."""
        apart = ["unshare", "--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        return {"under": apart, "env": {**no_flock, "SPOTWARP_MACHINE_ID": name}}

    first = ws.start("run", "--command", WAITS, **pod("pod-a"))
    first.until((ws.path / "ready").exists)
    for words in (("run", "--command", "touch second"), ("run", "--takeover", "--command", "touch second")):
        refused = ws(*words, code=125, **pod("pod-b"))
        assert "another machine works in this directory" in refused.err
        assert "alive; left alone" in refused.err
        assert os.uname().nodename in refused.err
    assert "left alone" in ws("restore", code=11, **pod("pod-b")).err
    assert not (ws.path / "second").exists()
    assert ws.facts("status")["generation"] == 1
    # It dies with everything on it; the other waits for its lease, then has the directory and the run.
    ws.die()
    done = ws("run", "--command", "test -e ready && exit 5", code=5, **pod("pod-b"))
    assert "waiting until its heartbeat stands still" in done.err
    assert ws.facts("status")["generation"] == 2
