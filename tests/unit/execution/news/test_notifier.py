"""News arrives, and a receiver that fails, hangs or lies harms nobody."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwarp.clock import SystemClock
from spotwarp.execution.news import webhook as webhook_module
from spotwarp.execution.news.notifier import Notifier, targets
from spotwarp.execution.process.proc import look
from spotwarp.testing.product import until
from spotwarp.testing.webhooks import Webhook, webhook


class Impatient(SystemClock):
    """Pauses between tries take no time."""

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        return event.is_set()


@contextlib.contextmanager
def dripping(first: bytes) -> Iterator[str]:
    """A server that says `first`, and then a byte now and then, for ever."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(first)
            while not over.wait(0.05):
                connection.sendall(b"x")

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as server:
        yield server


def notifier(*options: str, said: list[str] | None = None, env: dict[str, str] | None = None) -> Notifier:
    return Notifier(
        options,
        clock=Impatient(),
        env={"PATH": os.environ["PATH"], **(env or {})},
        origin=lambda: {"run": "main", "generation": 2},
        say=(said if said is not None else []).append,
        redact=lambda text: text.replace("hunter22", "***"),
    )


def test_a_post_has_all_the_facts(hook: Webhook) -> None:
    sender = notifier(hook.url)
    sender.send("done", "all of it, hunter22", step=3)
    sender.close()
    (seen,) = hook.seen
    assert seen.headers["content-type"] == "application/json"
    assert seen.json == {"v": 1, "event": "done", "text": "all of it, ***", "run": "main", "generation": 2, "step": 3}


def test_a_command_has_them_twice(tmp_path: Path) -> None:
    sender = notifier(
        'cat > "$OUT"; echo "$SPOTWARP_EVENT $SPOTWARP_EVENT_STEP" >> "$OUT"', env={"OUT": f"{tmp_path}/out"}
    )
    sender.send("stalled", 'it\'s "quoted"; $(touch no)', step=7)
    sender.close()
    document, variables = (tmp_path / "out").read_text().rsplit("}", 1)
    assert json.loads(document + "}")["text"] == 'it\'s "quoted"; $(touch no)'
    assert variables == "stalled 7\n"


def test_busy_receivers_are_asked_again(hook: Webhook) -> None:
    hook.answers[:] = [503, 429, 200]
    sender = notifier(hook.url)
    sender.send("done", "x")
    sender.close()
    assert len(hook.seen) == 3
    assert sender.error == ""


@pytest.mark.parametrize(("answers", "tries"), [([404], 1), ([302], 1), ([500, 500, 500, 500], 3)])
def test_a_failure_is_said_once_without_the_address(hook: Webhook, answers: list[int], tries: int) -> None:
    said: list[str] = []
    sender = notifier("env:HOOK", said=said, env={"HOOK": hook.url + "hunter22"})
    for _ in range(2):
        before = len(hook.seen)
        hook.answers[:] = list(answers)
        sender.send("done", "x")
        until(lambda n=before: len(hook.seen) >= n + tries, "the tries")  # type: ignore[misc]
    sender.close()
    assert len(hook.seen) == 2 * tries
    assert len(said) == 1
    assert "the run is not affected" in said[0]
    assert "hunter22" not in said[0] + sender.error
    assert str(answers[0]) in sender.error


def test_it_works_again_and_the_error_goes(hook: Webhook) -> None:
    sender = notifier(hook.url)
    hook.answers[:] = [400, 200]
    sender.send("done", "x")
    until(lambda: sender.error, "the error")
    sender.send("done", "x")
    sender.close()
    assert sender.error == ""


def test_nobody_there(tmp_path: Path) -> None:
    sender = notifier("http://127.0.0.1:1/", str(tmp_path / "not-there"), "exit 4")
    sender.send("done", "x")
    sender.close()
    assert "cannot be reached" in sender.error
    assert "exited with 127" in sender.error
    assert "exited with 4" in sender.error


@pytest.mark.parametrize("drip", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"])
def test_an_answer_that_drips_ends_in_time_too(drip: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotwarp.execution.news.notifier.TRY_S", 0.4)
    with dripping(drip) as url:
        sender = notifier(url)
        sender.send("done", "x")
        until(lambda: "did not answer within 0.4 s" in sender.error, "the end of all tries")
        sender.close()


def test_nobody_there_by_https_either() -> None:
    assert webhook_module.post("https://127.0.0.1:1/", b"{}", timeout_s=5, clock=SystemClock())[1]


def test_a_command_that_hangs_is_not_left_behind(tmp_path: Path) -> None:
    sender = notifier(f"echo $$ > {tmp_path}/pid; exec sleep 60")
    sender.send("done", "x")
    until((tmp_path / "pid").exists, "the command")
    sender.close(0.2)
    until(lambda: look(int((tmp_path / "pid").read_text())) is None, "its end")


def test_a_receiver_that_hangs_costs_what_close_may_cost(hook: Webhook) -> None:
    hook.hang = True
    sender = notifier(hook.url)
    clock = Impatient()
    sender.send("done", "x")
    until(lambda: hook.seen, "the request")
    sender.hurry(clock.monotonic())  # the machine ends now
    before = clock.monotonic()
    sender.close()
    assert clock.monotonic() - before < 5
    hook.hang = False


def test_an_empty_variable_is_said_and_harms_nothing(hook: Webhook) -> None:
    said: list[str] = []
    sender = notifier("env:NOT_SET", hook.url, said=said)
    assert ["NOT_SET" in line for line in said] == [True]
    assert "NOT_SET" in sender.error
    sender.send("done", "x")
    sender.close()
    assert len(hook.seen) == 1


def test_what_is_shown_of_a_target() -> None:
    found, wrong = targets(["https://user:pw@hooks.example/T0KEN", "env:A", "curl -d @- x"], {"A": "http://h:8/s3cret"})
    assert wrong == []
    shown = " ".join(t.name for t in found)
    assert shown == "notify 1 (https://hooks.example) notify env:A (http://h:8) notify 3 (a command)"


def test_the_queue_is_bounded(hook: Webhook) -> None:
    hook.hang = True
    sender = notifier(hook.url)
    for number in range(1000):
        sender.send("done", "x", number=number)
    hook.hang = False
    done = threading.Thread(target=sender.close)
    done.start()
    done.join(30)
    assert len(hook.seen) <= 102
    assert hook.seen[-1].json["number"] == 999
