"""Whatever is wrong outside: one message, a hint, its code; never a traceback, and nothing is lost."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.product import Machine

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times

VERBS = ("status", "snapshots", "runs", "check", "restore", "sync", "prune")


def refused(machine: Machine, *words: str, code: int) -> str:
    """What a verb says that must refuse: one error, one hint."""
    done = machine(*words, code=code)
    errors = [line for line in done.err.splitlines() if line.startswith("spotwarp: error:")]
    hints = [line for line in done.err.splitlines() if line.startswith("spotwarp: hint:")]
    assert len(errors) == 1, done.err
    assert len(hints) == 1, done.err
    return done.err


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("", 2), ("ftp://x/y", 2), ("s3://", 2), ("s3://b", 2), ("s3://key:secret@bucket/x", 2), ("file://host/x", 2),
        ("s3://bucket/../x", 2), ("a\nb", 2), ("/", 2), ("/dev/null/x", 10), ("/no/such/parent/x", 10),
        ("/etc/passwd", 10), ("C:\\x", 2),
    ],
)  # fmt: skip
def test_a_remote_path_that_is_none(rent: Rent, url: str, code: int) -> None:
    machine = rent()
    said = refused(machine, "init", "--remote-path", url, code=code)
    assert "secret" not in said
    assert list(machine.path.iterdir()) == []


def test_a_run_name_that_is_none(ws: Machine) -> None:
    for words in (
        ("run", "--run", "a b", "--command", "true"),
        ("run", "--run", "../x", "--command", "true"),
        ("status", "a/b"),
        ("status", ""),
        ("sync", "--run", "ä"),
        ("sync", "--run", "x" * 65),
    ):
        refused(ws, *words, code=2)
    assert [r["run"] for r in ws.facts("runs")] == ["main"]


def test_words_that_no_verb_knows(ws: Machine) -> None:
    for words in (("fly",), ("run", "--bogus"), ("restore", "--snapshot"), ("sync", "extra")):
        refused(ws, *words, code=2)


def test_settings_that_make_no_sense(ws: Machine) -> None:
    for name, value in {
        "INTERVAL": "0",
        "LEASE": "soon",
        "GRACE": "-1s",
        "SYNC_SHARE": "2",
        "KEEP_HOURLY": "x",
    }.items():
        done = ws("status", code=2, env={f"SPOTWARP_{name}": value})
        assert f"SPOTWARP_{name}" in done.err
        assert "hint:" in done.err


def test_what_is_said_of_a_setting_is_whole(ws: Machine) -> None:
    cut = ws("status", code=2, env={"SPOTWARP_GRACE": "-1s"}).err
    assert "30s)." in cut.partition("hint:")[2]  # the end of the sentence, not of its first line
    named = ws("status", "a b/c", code=2).err
    assert named.count("'a b/c'") == 1
    assert "digits" in named
    typo = ws("status", code=2, env={"SPOTWARP_NOTIFY": "htp://somewhere/x"}).err
    assert "neither http:// nor https://" in typo
    config = ws.path / ".spotwarp" / "config.yaml"
    lines = config.read_text().splitlines()
    config.write_text("\n".join("remote_path:" if one.startswith("remote_path:") else one for one in lines))
    assert "remote_path is empty" in ws("status", code=2).err


def test_a_variable_that_is_nearly_an_options_is_named_once(ws: Machine) -> None:
    done = ws("status", env={"SPOTWARP_INTERVALL": "5s", "SPOTWARP_UNRELATED": "x"})
    assert done.err.count("SPOTWARP_INTERVALL is not known") == 1
    assert "did you mean SPOTWARP_INTERVAL?" in done.err
    assert "UNRELATED" not in done.err


def test_outside_a_workspace(rent: Rent) -> None:
    machine = rent()
    for verb in VERBS:
        assert "init" in refused(machine, verb, code=2)
    assert "init" in refused(machine, "run", "--command", "true", code=2)
    assert "init" in refused(machine, "exclude", "x", code=2)


def test_in_a_directory_that_was_deleted(ws: Machine) -> None:
    gone = ws.path / "gone"
    for verb, code in (("status", 22), ("init", 22), ("sync", 22), ("run", 125)):
        gone.mkdir()
        shell = f"cd gone && rmdir ../gone && exec {sys.executable} -m spotwarp {verb}"
        done = subprocess.run(["bash", "-c", shell], cwd=ws.path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert "hint:" in done.stderr


def test_the_store_is_gone(ws: Machine, bucket: Path) -> None:
    ws("sync")
    bucket.rename(bucket.with_name("away"))
    for verb in VERBS:
        refused(ws, verb, code=10)
    ws("run", "--command", "touch never", code=125)
    assert not (ws.path / "never").exists()
    assert not bucket.exists()
    bucket.with_name("away").rename(bucket)
    assert len(ws.snapshots()) == 1


def test_another_repository_stands_where_ours_was(ws: Machine, bucket: Path, rent: Rent) -> None:
    """The workspace's local state is of another repository: nothing of it is believed, nothing here is overwritten."""
    ws.file("model", "ours")
    ws("sync")
    bucket.rename(bucket.with_name("away"))
    other = rent("other").init()
    other.file("model", "theirs")
    other("sync")
    assert "it was replaced" in ws("run", "--command", "touch never", code=125).err
    ws("init", "--new-repository")
    said = ws("run", "--command", "touch never", code=125).err
    assert "model" in said
    assert (ws.path / "model").read_text() == "ours"
    assert not (ws.path / "never").exists()


# --- objects of a newer format


def newer(path: Path) -> None:
    """Make an object claim to be of the next format version."""
    body = bytearray(path.read_bytes())
    assert body[:4] == b"SPWP"
    body[5] += 1
    path.write_bytes(body)


def everything(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_newer_repository_is_left_alone(ws: Machine, bucket: Path) -> None:
    ws("sync")
    newer(bucket / "config")
    before = everything(bucket)
    for verb in VERBS:
        assert "pgrade" in refused(ws, verb, code=19)
    ws("run", "--command", "touch never", code=125)
    assert everything(bucket) == before
    assert not (ws.path / "never").exists()


def test_a_newer_entry_makes_the_run_read_only(ws: Machine, bucket: Path) -> None:
    ws.file("model", "x" * 1000)
    ws("sync")
    log = bucket / "runs" / "main" / "log"
    newer(max(log.iterdir()))
    before = everything(log)
    for words in (("sync",), ("run", "--command", "touch never"), ("run", "--takeover", "--command", "touch never")):
        done = ws(*words, code=125 if words[0] == "run" else 19)
        assert "pgrade" in done.err
    assert everything(log) == before
    assert not (ws.path / "never").exists()
    assert ws.facts("status")["readonly"]
    ws("restore", "--to", str(ws.path.with_name("out")))  # reading what is understood still works
    assert (ws.path.with_name("out") / "model").exists()


def test_a_newer_manifest_is_said_to_be_newer_and_others_come_back(ws: Machine, bucket: Path) -> None:
    manifests = bucket / "runs" / "main" / "manifests"
    ws.file("model", "first")
    ws("sync", env={"SPOTWARP_KEEP_HOURLY": "0"})
    (older,) = ws.snapshots()
    newer(next(iter(manifests.iterdir())))
    done = ws("restore", "--to", str(ws.path.with_name("out")), code=None)
    assert done.code in (16, 19)
    assert "hint:" in done.err
    assert not ws.path.with_name("out").exists()
    assert ws("check", code=16).out
    assert older["id"]


# --- disks


@pytest.mark.parametrize("verb", ["restore", "run"])
def test_no_room_for_a_restore_leaves_nothing_that_looks_whole(ws: Machine, rent: Rent, verb: str) -> None:
    """A limit on the size of a file stands for the disk's end: the write fails in its middle."""
    ws.file("model", os.urandom(3 << 20))
    ws("sync")
    other = rent("other").init()
    words = ("restore",) if verb == "restore" else ("run", "--command", "touch never")
    limit = (1 << 20, 1 << 20)
    done = other(*words, code=22 if verb == "restore" else 125,
                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))  # fmt: skip
    assert "hint:" in done.err
    assert not (other.path / "model").exists()
    assert not (other.path / "never").exists()
    other("run", "--command", "cmp model ../ws/model")  # with room again the same place works


def test_a_full_store_is_told_and_training_goes_on(ws: Machine) -> None:
    ws("sync")
    before = ws.snapshots()[-1]["id"]
    limit = (64 << 10, 64 << 10)
    done = ws(
        "run", "--command", "head -c 50000 /dev/urandom > a; for i in 1 2 3 4 5 6; do cat a a > b$i; done; exit 0",
        code=None, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )  # fmt: skip
    assert done.code in (0, 1, 125), done.err
    if done.code == 125:
        assert "final sync failed" in done.err
    assert before in {s["id"] for s in ws.snapshots()} or done.code == 0
    ws("check", "--read-data")


@pytest.mark.deep
def test_a_read_only_workspace_is_named(ws: Machine, rent: Rent) -> None:
    script = (
        'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && cd "$0" && '
        f'for verb in sync restore "run --command true"; do {sys.executable} -m spotwarp $verb; echo "=$?"; done'
    )
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script, str(ws.path)], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.stderr.count("hint:") >= 3
    assert "=0" not in done.stdout


POWERLESS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]


def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_stored(ws: Machine, rent: Rent) -> None:
    ws.file("good", "x")
    ws.file("closed", "y").chmod(0)
    done = ws("run", "--command", "exit 0", code=125, under=POWERLESS)
    assert "not stored: closed (cannot be read" in done.err
    assert "not everything is stored: 1 path(s) could not be read: closed" in done.err
    assert ws.facts("status", code=1)["state"] == "stopped"  # not complete: a second look can still save it
    ws("restore", "--to", str(ws.path.with_name("out")))
    assert (ws.path.with_name("out") / "good").read_text() == "x"
    assert not (ws.path.with_name("out") / "closed").exists()
    other = rent("other").init()
    assert "this snapshot lacks closed (cannot be read" in other("run", "--command", "exit 4", code=4).err
    ws.path.joinpath("closed").chmod(0o600)
    ws("run", "--keep-local", "--command", "exit 0")
    assert ws.facts("status")["state"] == "complete"


def test_a_workspace_that_cannot_be_read_at_all(ws: Machine) -> None:
    ws.path.joinpath(".spotwarp", "config.yaml").chmod(0)
    for words, code in ((("status",), 2), (("sync",), 2), (("run", "--command", "true"), 2)):
        done = ws(*words, code=code, under=POWERLESS)
        assert "hint:" in done.err
