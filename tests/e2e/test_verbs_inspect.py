"""`status`, `snapshots`, `runs` and `check` as programs: the shapes they print, and damage that stays where it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.product import Machine

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow  # a whole program, several times


def test_the_shapes_that_programs_rely_on(ws: Machine) -> None:
    fresh = ws.facts("status")
    assert (fresh["run"], fresh["generation"], fresh["last_snapshot"]) == ("main", 0, None)
    assert ws.facts("snapshots") == []
    assert ws.facts("runs") == [{"run": "main", "state": "new", "generation": 0, "snapshots": 0}]
    write_files(ws.path / "out" / "checkpoint-30", huggingface_files(30))
    program = ws.start("run", "--command", "touch ready; until test -e go; do sleep 0.05; done; exit 2")
    program.until(lambda: (ws.path / "ready").exists() and ws.snapshots(), "a snapshot")
    during = ws.facts("status")
    assert {
        "run", "state", "generation", "holder", "since", "beat_age_s", "exit", "at_risk_s", "at_risk_bytes",
        "last_snapshot", "last_snapshot_time", "last_snapshot_age_s", "resumable_snapshot", "resumable_checkpoint",
        "resumable_step", "loss", "step", "errors", "errors_since", "retained", "command", "readonly",
    } <= set(during)  # fmt: skip
    assert during["holder"]
    assert during["beat_age_s"] < 30
    assert (during["resumable_checkpoint"], during["resumable_step"]) == ("out/checkpoint-30", 30)
    assert during["loss"] == 2.25
    assert 0 <= during["at_risk_s"] < 30
    ws.file("go", "")
    program.end(2)
    *_, snapshot = kept = ws.facts("snapshots")
    assert kept == ws.snapshots()
    assert set(snapshot) == {
        "id", "generation", "time", "files", "bytes", "read_bytes", "stored_bytes", "resumable", "late", "late_bytes",
    }  # fmt: skip
    assert snapshot["resumable"] == {"path": "out/checkpoint-30", "step": 30}
    assert ws.facts("runs") == [{"run": "main", "state": "stopped", "generation": 1, "snapshots": len(kept)}]
    words = ws("status").out.decode()
    assert "checkpoint-30" in words
    assert "work at risk" in words


def test_a_run_that_has_not_begun_is_told_from_one_that_is_not_there(ws: Machine) -> None:
    assert ws.facts("runs") == [{"run": "main", "state": "new", "generation": 0, "snapshots": 0}]
    for verb in ("logs", "check", "restore"):
        done = ws(verb, code=10)
        assert "'main' has not begun" in done.err
        assert "no run" not in done.err


def test_a_run_that_is_not_there(ws: Machine) -> None:
    for verb in ("status", "snapshots", "check"):
        done = ws(verb, "nobody", "--json", code=10)
        assert done.json["error"]["code"] == "RunMissing"
        assert done.json["error"]["exit_code"] == 10
        assert "spotwarp runs" in done.json["error"]["hint"]


# --- damage


@pytest.fixture
def stored(ws: Machine) -> Machine:
    """Three snapshots, each of an own checkpoint and an own file."""
    for step in (10, 20, 30):
        ws.file(f"file-{step}", f"content {step}" * 1000)
        write_files(ws.path / "out" / f"checkpoint-{step}", huggingface_files(step, size=2000 + step))
        ws("sync")
    assert len(ws.snapshots()) == 3
    return ws


def flip(path: Path) -> None:
    """One bit near the beginning, where the data is, not the table that nobody needs to restore."""
    body = bytearray(path.read_bytes())
    body[20] ^= 0x10
    path.write_bytes(body)


def cut(path: Path) -> None:
    """Only the beginning of the file is there."""
    path.write_bytes(path.read_bytes()[:20])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": cut,
    "gone": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
}


def youngest(directory: Path) -> Path:
    """The object that was written last."""
    return max(directory.iterdir(), key=lambda p: p.stat().st_mtime_ns)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["packs", "manifests"])
def test_one_damaged_object_costs_only_its_own_snapshot(
    stored: Machine, bucket: Path, rent: Rent, kind: str, damage: str
) -> None:
    older, middle, newest = [s["id"] for s in stored.snapshots()]
    victim = youngest(bucket / "runs" / "main" / kind)
    DAMAGES[damage](victim)
    report = stored.facts("check", "--read-data", code=16)
    assert report["whole"] == [older, middle]
    assert report["broken"] == [newest]
    assert any(victim.name in p["key"] for p in report["problems"])
    assert all({"kind", "key", "what", "snapshots", "files"} == set(p) for p in report["problems"])
    words = stored("check", "--read-data", code=16)
    assert "DAMAGED" in words.out.decode()
    # The damaged one is refused and leaves nothing that looks whole, the others come back, `run` falls back loudly.
    out = stored.path.with_name("out")
    refused = stored("restore", "--snapshot", str(newest), "--to", str(out), code=16)
    assert "hint:" in refused.err
    assert not out.exists()
    stored("restore", "--snapshot", str(middle), "--to", str(stored.path.with_name("middle")))
    other = rent("other").init()
    done = other("run", "--command", "ls out; exit 3", code=3)
    assert done.out.split() == [b"checkpoint-10", b"checkpoint-20"]
    assert f"snapshot {newest} is damaged" in done.err


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied"])
def test_a_damaged_log_entry_is_named_and_what_is_kept_comes_back(stored: Machine, bucket: Path, damage: str) -> None:
    older, middle, newest = [s["id"] for s in stored.snapshots()]
    DAMAGES[damage](bucket / "runs" / "main" / "log" / f"{middle:010}")
    report = stored.facts("check", code=16)
    assert any(f"{middle:010}" in p["key"] for p in report["problems"])
    assert set(report["whole"]) >= {newest}
    stored("restore", "--snapshot", str(newest), "--to", str(stored.path.with_name("newest")))
    assert (stored.path.with_name("newest") / "file-30").exists()
    stored.file("more", "work")
    stored("run", "--command", "exit 3", code=3)  # the run goes on all the same
    assert older in {s["id"] for s in stored.snapshots()} or older in report["whole"]


def test_lost_data_that_is_still_here_is_sent_again(stored: Machine, bucket: Path) -> None:
    youngest(bucket / "runs" / "main" / "packs").unlink()
    assert stored.facts("check", code=16)["broken"]
    stored.file("unrelated", "x")
    done = stored("run", "--command", "exit 3", code=None)
    assert done.code in (3, 125), done.err  # never a plain success over a hole
    newest = stored.snapshots()[-1]["id"]
    if done.code == 3:
        assert newest in stored.facts("check", "--read-data", code=None)["whole"]


def test_damage_in_what_is_only_local_costs_nothing(stored: Machine) -> None:
    own = stored.path / ".spotwarp"
    for name in ("state.json", "cache/stat", "lock", "restoring"):
        for body in (b"", b"\0" * 200, b"{"):
            (own / name).write_bytes(body)
            assert stored("run", "--command", "ls out | wc -l; exit 3", code=3).out.split() == [b"3"]
    assert stored.facts("check", "--read-data")["problems"] == []
