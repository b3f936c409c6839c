"""The same job on another path, with another command, in another shape, and after it was complete."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwarp.persistence.envelope import Kind, unseal
from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.product import Machine

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow


def claims(bucket: Path, run: str = "main") -> list[dict[str, object]]:
    """The claims of a run, as they stand in the bucket."""
    found = []
    for path in sorted((bucket / "runs" / run / "log").iterdir()):
        entry = json.loads(unseal(path.read_bytes(), Kind.ENTRY, path.name))
        if entry["kind"] == "claim":
            found.append(entry)
    return found


def test_another_command_is_allowed_said_and_logged(ws: Machine, bucket: Path) -> None:
    ws("run", "--command", "echo --lr 1e-4; exit 3", code=3)
    done = ws("run", "--command", "echo --lr 2e-4; exit 3", code=3)
    changes = ["command was: echo --lr 1e-4; exit 3", "command is:  echo --lr 2e-4; exit 3"]
    for change in changes:
        assert f"not as before: {change}" in done.err
    assert claims(bucket)[1]["changes"] == changes
    assert "not as before" not in ws("run", code=3).err


def test_another_path_is_named_with_what_holds_the_old_one(rent: Rent, ws: Machine) -> None:
    checkpoint = write_files(ws.path / "out" / "checkpoint-20", huggingface_files(20))
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    state["best_model_checkpoint"] = str(checkpoint)
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    ws.file("venv/pyvenv.cfg", "home = /usr/bin\n")
    ws.file("venv/bin/pip", f"#!{ws.path}/venv/bin/python\n")
    (ws.path / "link").symlink_to(ws.path / "out")
    ws("run", "--command", "exit 3", code=3)
    other = rent("other").init()
    done = other("run", code=3)
    assert f"path: was {ws.path}, is {other.path}" in done.err
    for words in ("best_model_checkpoint is", "1 script(s) start", "the link link leads to"):
        assert words in done.err, done.err
    assert "hold the old path" not in other("run", code=3).err


def test_a_machine_without_enough_gpus_downloads_nothing(rent: Rent, ws: Machine, tmp_path: Path) -> None:
    def gpus(count: int) -> dict[str, str]:
        tools = tmp_path / f"tools-{count}"
        tools.mkdir(exist_ok=True)
        tool = tools / "nvidia-smi"
        tool.write_text("#!/bin/sh\n" + "".join(f"echo 'GPU {n}: NVIDIA T (UUID: GPU-{n})'\n" for n in range(count)))
        tool.chmod(0o755)
        return {"PATH": f"{tools}:{os.environ['PATH']}"}

    write_files(ws.path / "out" / "checkpoint-20", huggingface_files(20))
    ws("run", "--command", "exit 3", code=3, env=gpus(4))
    other = rent("other").init()
    refused = other("run", code=125, env=gpus(2))
    assert "was on 4 GPU(s), this machine has 2" in refused.err
    assert "--allow-other-shape" in refused.err
    assert [p.name for p in other.path.iterdir()] == [".spotwarp"]
    done = other("run", code=3, env={**gpus(2), "SPOTWARP_ALLOW_OTHER_SHAPE": "true"})
    assert "GPUs: was 4, is 2" in done.err


def test_a_complete_run_goes_on_as_another_that_shares_its_data(rent: Rent, ws: Machine, bucket: Path) -> None:
    ws.file("data.bin", os.urandom(3 << 20))
    write_files(ws.path / "out" / "checkpoint-20", huggingface_files(20))
    ws("run", "--command", "true")
    offered = ws("run", "--command", "more", code=125)
    assert "--extend" in offered.err
    ws("run", "--extend", "--command", "more", code=125, env={"SPOTWARP_SECRETS": "NOT_SET"})
    ws("run", "--extend", "--command", "more hunter22", code=2, env={"SPOTWARP_SECRETS": "TOKEN", "TOKEN": "hunter22"})
    assert [run["run"] for run in ws.facts("runs")] == ["main"]  # nothing was changed, as it says
    extend = ("run", "--extend", "--command", 'echo "$SPOTWARP_RESUMED $SPOTWARP_LAST_CHECKPOINT"; exit 3')
    done = ws(*extend, code=3)
    assert "going on as run 'main-2'" in done.err
    assert done.out.decode() == f"1 {ws.path}/out/checkpoint-20\n"
    first, *_ = ws.snapshots()
    assert first["stored_bytes"] < 1 << 20  # the data is the parent's
    runs = [(run["run"], run["state"], run["generation"]) for run in ws.facts("runs")]
    assert runs == [("main", "complete", 1), ("main-2", "stopped", 1)]
    # The same line on another machine, which knows of `main` only: the same run goes on.
    other = rent("other").init()
    done = other(*extend, code=3)
    assert done.out.decode() == f"1 {other.path}/out/checkpoint-20\n"
    assert (other.path / "data.bin").read_bytes() == (ws.path / "data.bin").read_bytes()
    assert other.facts("status")["generation"] == 2
    # Nothing that the child needs goes with the parent's retention.
    other("prune", "--run", "main", "--grace", "0s")
    other("prune", "--make-room")
    assert other.facts("check", "--read-data")["problems"] == []
    other("run", "--command", "true")
    assert other("run", "--extend", "--command", "true").out == b""  # complete, and nothing new was asked
    other("run", "--extend", "--command", "exit 4", code=4)
    assert [r["run"] for r in other.facts("runs")] == ["main", "main-2", "main-3"]
    assert other.facts("check", "--read-data")["problems"] == []
    assert claims(bucket, "main-3")[0]["generation"] == 1


def test_an_extension_that_died_halfway_is_carried_on(ws: Machine, bucket: Path) -> None:
    ws.file("a", "b")
    ws("run", "--command", "true")
    origin = ws.path / ".spotwarp" / "state.json"
    before = origin.read_bytes()
    ws("run", "--extend", "--command", "exit 3", code=3)
    # The pin stands, the rest was never written, nor was the workspace told.
    origin.write_bytes(before)
    shutil.rmtree(bucket / "runs" / "main-2")
    (bucket / "names" / "main-2").unlink()
    config = ws.path / ".spotwarp" / "config.yaml"
    config.write_text(config.read_text().replace("run: main-2", "run: main"))
    ws("run", "--extend", "--command", "exit 3", code=3)
    assert [r["run"] for r in ws.facts("runs")] == ["main", "main-2"]
    assert ws.facts("check", "--read-data")["problems"] == []


def test_the_config_keeps_its_comments_and_names_the_run(ws: Machine) -> None:
    ws("run", "--command", "true")
    before = (ws.path / ".spotwarp" / "config.yaml").read_text()
    ws("run", "--extend", "--command", "exit 3", code=3)
    after = (ws.path / ".spotwarp" / "config.yaml").read_text()
    assert after == before.replace("run: main\n", "run: main-2\n")
    assert ws("run", code=3)
    assert ws.facts("status")["run"] == "main-2"
