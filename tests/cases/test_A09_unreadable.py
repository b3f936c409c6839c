"""Case A09: one unreadable file aborts nothing, is named, and keeps the run from being called fully stored."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spotwarp.testing.product import Machine
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.webhooks import webhook

__all__ = ["bucket", "rent", "ws"]

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow

# Without the right to read everything, as an ordinary user is. As one, that is so anyway.
POWERLESS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]


def test_A09_one_unreadable_file_among_a_hundred(rent: Rent) -> None:
    with webhook() as hook:
        ws = rent(env={"SPOTWARP_NOTIFY": hook.url}).init()
        for number in range(99):
            ws.file(f"f{number:02}", str(number))
        ws.file("locked.bin", "nobody reads this").chmod(0)
        command = "until test -e go; do sleep 0.05; done"
        program = ws.start("run", "--json", "--command", command, under=POWERLESS)
        program.until(lambda: ws.snapshots(), "a snapshot")
        program.until(lambda: ws.facts("status", code=None)["lacking"], "the word of it in status")
        live = ws("status", code=1)
        assert live.out.splitlines()[0].startswith(b"NOT STORED")
        assert b"locked.bin" in live.out.splitlines()[0]
        ws.file("go", "")
        done = program.end(125)  # the command ended with 0, but not everything is stored
        assert "locked.bin" in done.err
        said = json.loads(done.err.splitlines()[-1])
        assert (said["sealed"], said["stored"]) == ("stopped", False)  # as in the log
        after = ws("status", code=1)
        assert b"locked.bin" in after.out.splitlines()[0]
        facts = ws.facts("status", code=1)
        assert facts["state"] == "stopped"  # not complete: whoever ends machines must not take it for stored
        assert "1 path(s) could not be read" in facts["lacking"]
        assert hook.events() == ["failed"]
        assert hook.seen[0].json["stored"] is False
        assert "locked.bin" in hook.seen[0].json["text"]
        out = ws.path.with_name("out")
        ws("restore", "--to", str(out))
        assert len(list(out.glob("f*"))) == 99
        assert not (out / "locked.bin").exists()
        # Readable again, it is stored, and nothing is lacking any more.
        (ws.path / "locked.bin").chmod(0o600)
        ws("run", "--command", "true")
        assert ws.facts("status")["lacking"] == ""


def test_A09_stop_does_not_call_it_stored(ws: Machine) -> None:
    ws.file("locked.bin", "nobody reads this").chmod(0)
    command = "trap 'exit 0' INT; while :; do sleep 0.05; done"
    ws("run", "--detach", "--command", command, under=POWERLESS)
    assert "locked.bin" in ws("stop", code=125).err


def test_A09_a_single_sync_says_so_too(ws: Machine) -> None:
    ws.file("a", "b")
    ws.file("locked.bin", "nobody reads this").chmod(0)
    done = ws("sync", "--json", under=POWERLESS)
    assert "NOT STORED: 1 path(s) could not be read: locked.bin" in done.err
    assert "locked.bin" in done.json["lacking"]
    assert "locked.bin" in ws.facts("status", code=1)["lacking"]
