"""`spotwarp doctor` as a program, against a real S3 server that a proxy can make worse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spotwarp.testing.checkpoints import huggingface_files, write_files
from spotwarp.testing.faultproxy import FaultProxy, Rule
from spotwarp.testing.product import Machine
from spotwarp.testing.seaweed import Seaweed

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow


def lines(found: Any) -> dict[str, Any]:
    return {line["name"]: line for line in found["lines"]}


def test_before_init_on_a_real_store(rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str) -> None:
    machine = rent(env={**seaweed_server.env(endpoint=s3_proxy.endpoint), "SPOTWARP_GRACE": "25s"})
    found = machine.facts("doctor", "--remote-path", s3_url)
    assert found["ok"] is True
    said = lines(found)
    assert said["store"]["level"] == "ok"
    assert said["clock"]["level"] == "ok"
    assert "not stored now: 0 B, fits" in said["notice 5 s"]["text"]
    assert "SIGTERM (25 s: the option grace)" in said["notices"]["text"]
    assert found["measured"]["rates"]["up_bytes_s"] > 0
    assert list(machine.path.iterdir()) == []
    put = {seen.path.partition("?")[0] for seen in s3_proxy.seen if seen.verb == "PUT" and "/probe/" in seen.path}
    gone = {seen.path.partition("?")[0] for seen in s3_proxy.seen if seen.verb == "DELETE"}
    assert put
    assert put <= gone  # nothing of it stays

    s3_proxy.rule(Rule(verb="HEAD", path="/clock", last_modified="Tue, 01 Jan 2030 00:00:00 GMT"))
    skewed = machine.facts("doctor", "--remote-path", s3_url, code=1)
    assert lines(skewed)["clock"]["level"] == "fail"
    assert "s ahead" in lines(skewed)["clock"]["text"]

    s3_proxy.rule(Rule(verb="DELETE", status=403, code="AccessDenied"))
    kept = lines(machine.facts("doctor", "--remote-path", s3_url))
    assert (kept["store"]["level"], kept["rate"]["level"]) == ("warn", "warn")

    s3_proxy.rule(Rule(status=403, code="AccessDenied"))
    denied = machine("doctor", "--remote-path", s3_url, code=1)
    assert b"FAIL  store" in denied.out
    assert b"disk" in denied.out  # one trouble hides no other
    assert b"hint:" in denied.out


def test_of_a_workspace(rent: Rent, ws: Machine) -> None:
    assert ws("doctor", cwd=ws.path.parent, code=2).err.count("hint:") == 1
    write_files(ws.path / "out" / "checkpoint-20", huggingface_files(20, size=100_000))
    ws.file("data", b"d" * 3_000_000)
    found = ws.facts("doctor")
    assert found["measured"]["load"]["dirty"] > 3_000_000
    assert 200_000 < found["measured"]["load"]["checkpoint"] < 1_000_000
    ws("run", "--command", "exit 3", code=3)
    found = ws.facts("doctor")
    assert found["measured"]["load"]["dirty"] < 10_000
    assert found["measured"]["disk"]["restore_bytes"] == 0
    other = rent("other").init()
    there = other.facts("doctor")
    elsewhere = there["measured"]
    assert elsewhere["disk"]["restore_bytes"] > 3_000_000
    assert elsewhere["load"]["checkpoint"] == found["measured"]["load"]["checkpoint"]
    assert lines(there)["disk"]["level"] != "fail"
