"""Damage in the bucket: what is rotten is never built upon, and what is still here, or is made again, is sent again."""

from __future__ import annotations

import http.server
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.product import Machine
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.trees import Node, read_tree

__all__ = ["bucket", "rent", "ws"]

pytestmark = pytest.mark.slow

Rent = Callable[..., Machine]
FEW = {"SPOTWARP_KEEP_HOURLY": "0", "SPOTWARP_KEEP_RESUMABLE": "1"}

# Deterministic: whoever trains the same steps writes the same bytes, so that they would be found in the rotten packs.
TRAINER = """
import re, sys
from pathlib import Path
from spotwarp.testing.checkpoints import huggingface_files, write_files

last, code = int(sys.argv[1]), int(sys.argv[2])
done = max((int(m[1]) for p in Path("out").glob("*") if (m := re.fullmatch("checkpoint-([0-9]+)", p.name))), default=0)
print("start", done, flush=True)
for step in range(done + 10, last + 1, 10):
    write_files(Path("out") / f"checkpoint-{step}", huggingface_files(step, size=5000 + step))
    Path(f"metrics-{step}").write_text(f"{step} " * 2000)
sys.exit(code)
"""


def train(machine: Machine, last: int, code: int) -> bytes:
    machine.file("train.py", TRAINER)
    command = ("run", "--interval", "1h", "--", sys.executable, "train.py", str(last), str(code))
    return machine(*command, code=code).out


def packs(bucket: Path) -> set[Path]:
    return set((bucket / "runs" / "main" / "packs").iterdir())


def rot(path: Path) -> None:
    """Bits near the beginning, where the data is, have flipped."""
    body = bytearray(path.read_bytes())
    body[40] ^= 0x11
    path.write_bytes(body)


def content(directory: Path) -> dict[bytes, Node]:
    """What is there, without SpotWarp's own, and without times."""
    own = b".spotwarp"
    return {p: n._replace(mtime_ns=0) for p, n in read_tree(directory).items() if p.partition(b"/")[0] != own}


def restored(machine: Machine, name: str = "restored") -> Path:
    """The last snapshot as another directory gets it."""
    place = machine.path.with_name(name)
    machine("restore", "--to", str(place))
    return place


# --- rotten data


def test_a_training_that_repeats_what_is_rotten_is_stored_whole(ws: Machine, bucket: Path, rent: Rent) -> None:
    """The new machine goes back to an older snapshot and makes the same bytes again: they are not taken as stored."""
    train(ws, 10, 1)
    before = packs(bucket)
    train(ws, 20, 1)
    newest = ws.snapshots()[-1]["id"]
    for pack in packs(bucket) - before:
        rot(pack)
    other = rent("other").init()
    other.file("train.py", TRAINER)
    done = other("run", "--interval", "1h", "--", sys.executable, "train.py", "30", "4", code=4)
    assert f"snapshot {newest} is damaged" in done.err
    assert done.out == b"start 10\n"
    final = other.snapshots()[-1]["id"]
    assert final in other.facts("check", "--read-data", code=None)["whole"]
    assert content(restored(other)) == content(other.path)
    # And a machine that knows nothing of the damage goes on from there.
    third = rent("third").init()
    assert train(third, 40, 0) == b"start 30\n"
    assert content(restored(third, "again")) == content(third.path)


@pytest.mark.parametrize("at_work", [False, True], ids=["alone", "beside a run"])
def test_what_check_finds_rotten_is_sent_again(ws: Machine, bucket: Path, at_work: bool) -> None:
    ws.file("model", b"weights" * 5000)
    ws("sync")
    if at_work:
        program = ws.start("run", "--interval", "1h", "--command", "touch ready; until test -e go; do sleep 0.05; done")
        program.until((ws.path / "ready").exists)
    for pack in packs(bucket):
        rot(pack)
    found = ws.facts("check", "--read-data", code=16)
    assert found["whole"] == []
    answer = ws.facts("sync")
    assert answer["stored_bytes"] > 0
    assert answer["id"] in ws.facts("check", "--read-data", code=None)["whole"]
    assert (restored(ws) / "model").read_bytes() == b"weights" * 5000
    if at_work:
        ws.file("go", "")
        program.end(0)
        assert ws.snapshots()[-1]["id"] in ws.facts("check", "--read-data", code=None)["whole"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_snapshot_before_an_unread_one_is_kept(ws: Machine, bucket: Path, rent: Rent, checkpoint: bool) -> None:
    """The newest was acknowledged, is not what was sent, and its machine is gone: the one before must be there."""
    if checkpoint:
        write_files(ws.path / "out" / "checkpoint-10", huggingface_files(10))
    for text in ("one", "two"):
        before = packs(bucket) if text == "two" else set()
        ws.file("model", text * 1000)
        ws("sync", env=FEW)
    ws("prune", "--grace", "0s")
    assert len(ws.snapshots()) == 2
    for pack in packs(bucket) - before:
        pack.unlink()
    other = rent("other").init()
    assert other("run", "--command", "head -c 3 model; exit 3", code=3, env=FEW).out == b"one"


# --- a damaged claim


@pytest.mark.parametrize("damage", [b"", b"SPWP\0\0", b"\xff" * 300])
@pytest.mark.parametrize("verb", ["run", "sync", "bare run"])
def test_a_claim_that_cannot_be_read_stops_nobody(ws: Machine, bucket: Path, verb: str, damage: bytes) -> None:
    ws.file("model", "kept")
    ws("run", "--command", "exit 3", code=3)
    entry = bucket / "runs" / "main" / "log" / f"{1:010}"
    assert b"exit 3" in entry.read_bytes()
    entry.write_bytes(damage)
    if verb == "bare run":
        assert "hint:" in ws("run", code=2).err  # its command was in there
        return
    ws.file("model", "changed")
    done = ws("run", "--command", "cat model; exit 4", code=4) if verb == "run" else ws("sync")
    assert done
    assert ws.facts("status")["generation"] == 2
    assert (restored(ws) / "model").read_bytes() == b"changed"


# --- stores that are none


class Forgetful(http.server.BaseHTTPRequestHandler):
    """Enough of S3 for a probe, with create-if-absent; `fault` is what it does not do."""

    protocol_version = "HTTP/1.1"
    fault = ""
    objects: dict[str, bytes]

    def log_message(self, format: str, *args: object) -> None:
        """Nothing goes to stderr."""

    def answer(self, status: int, body: bytes = b"", part: str = "") -> None:
        self.send_response(status)
        if part:
            self.send_header("Content-Range", part)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("if-none-match") and self.path in self.objects:
            return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        self.objects[self.path] = body
        return self.answer(200)

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self.answer(204)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if "list-type=2" in query:
            prefix = parse_qs(query).get("prefix", [""])[0]
            sizes = {name.split("/", 2)[2]: len(body) for name, body in self.objects.items()}
            rows = "".join(
                f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>0</ETag>"
                f"<Size>{size}</Size></Contents>"
                for key, size in sorted(sizes.items())
                if key.startswith(prefix) and self.fault != "lists nothing"
            )
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
            return self.answer(200, text.encode())
        body = self.objects.get(path)
        if body is None or self.fault == "keeps nothing":
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        if self.fault == "gives something else":
            body = bytes(byte ^ 1 for byte in body)
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", "")):
            first, last = int(wanted[1]), min(int(wanted[2]), len(body) - 1)
            return self.answer(206, body[first : last + 1], f"bytes {first}-{last}/{len(body)}")
        return self.answer(200, body)

    do_HEAD = do_GET


@pytest.fixture
def forgetful(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a store listens that does not do what the parameter says."""
    handler = type("Handler", (Forgetful,), {"fault": request.param, "objects": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def started_with(rent: Rent, endpoint: str) -> Machine:
    return rent(env={"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})


@pytest.mark.parametrize("forgetful", ["keeps nothing", "gives something else", "lists nothing"], indirect=True)
@pytest.mark.parametrize("accept", [[], ["--single-writer"]], ids=["", "single-writer"])
def test_init_refuses_a_store_that_does_not_keep_or_list(rent: Rent, forgetful: str, accept: list[str]) -> None:
    machine = started_with(rent, forgetful)
    done = machine("init", "--remote-path", "s3://bucket/x", "--json", *accept, code=19)
    assert done.json["error"]["code"] == "StoreUnsupported"
    assert done.json["error"]["hint"]
    assert not (machine.path / ".spotwarp" / "config.yaml").exists()


@pytest.mark.parametrize("forgetful", ["is honest"], indirect=True)
def test_init_takes_the_same_store_when_it_is_honest(rent: Rent, forgetful: str) -> None:
    started_with(rent, forgetful)("init", "--remote-path", "s3://bucket/x")
