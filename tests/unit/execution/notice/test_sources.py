"""Each source against its service: the exact questions, what is made of the answers, and what of hostile ones."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from spotwarp.clock import SystemClock
from spotwarp.errors import NoticeFault
from spotwarp.execution.notice import aws as aws_module
from spotwarp.execution.notice.aws import Aws
from spotwarp.execution.notice.azure import Azure, events_of
from spotwarp.execution.notice.exchange import LIMIT, Endpoint
from spotwarp.execution.notice.gcp import Gcp
from spotwarp.execution.notice.source import Announced, Seen, Source
from spotwarp.testing.clocks import VirtualClock
from spotwarp.testing.metadata import AwsMetadata, AzureMetadata, GcpMetadata, Metadata, metadata
from spotwarp.testing.pytest_metadata import aws, azure, cloud, gcp

CLOCK = SystemClock()
ACTION = "/latest/meta-data/spot/instance-action"
TOKEN = "/latest/api/token"
CLOUDS = ["aws", "gcp", "azure"]
__all__ = ["aws", "azure", "cloud", "gcp"]


def source(served: Metadata) -> Source:
    kinds = {"aws": Aws, "azure": Azure}
    if served.name == "gcp":
        return Gcp(served.address, CLOCK)
    return kinds[served.name](f"http://{served.address}", CLOCK)


def announced(seen: Seen) -> Announced:
    assert seen.announced is not None
    return seen.announced


# --- AWS


def test_aws_is_asked_with_a_token_once_each_look(aws: AwsMetadata) -> None:
    watched = source(aws)
    assert watched.look() == Seen()
    assert watched.look() == Seen()
    assert len(aws.asked(ACTION)) == 2
    (token,) = aws.asked(TOKEN, "PUT")
    assert token.headers["x-aws-ec2-metadata-token-ttl-seconds"] == "3600"
    assert all("x-aws-ec2-metadata-token" in one.headers for one in aws.asked(ACTION))
    assert watched.period_s == 2.0


@pytest.mark.parametrize("action", ["terminate", "stop"])
def test_an_interruption_has_its_time(aws: AwsMetadata, action: str) -> None:
    aws.interrupt(100, action)
    said = announced(source(aws).look())
    assert 97 < said.seconds_left <= 100
    assert said.what == action


@pytest.mark.parametrize("off", [-7200, 7200])
def test_the_services_clock_is_believed_more_than_ours(aws: AwsMetadata, off: float) -> None:
    aws.clock(off)
    aws.interrupt(100)
    said = announced(source(aws).look())
    assert 96 < said.seconds_left <= 100
    assert "7200 s" in said.by or "7199 s" in said.by or "7201 s" in said.by


def test_without_the_services_clock_an_impossible_time_is_the_usual_lead(aws: AwsMetadata) -> None:
    aws.clock(None)
    aws.interrupt(time_text="2001-01-01T00:00:00Z")
    assert announced(source(aws).look()).seconds_left == 120


@pytest.mark.parametrize("text", ["", "soon", "2026-13-45T00:00:00Z", "9" * 50_000])
def test_an_action_whose_time_is_unreadable_is_certain_all_the_same(aws: AwsMetadata, text: str) -> None:
    aws._texts["spot/instance-action"] = json.dumps({"action": "terminate", "time": text})
    said = announced(source(aws).look())
    assert (said.seconds_left, said.what) == (120, "terminate")


def test_hibernation_and_a_rebalance_recommendation_are_hints(aws: AwsMetadata) -> None:
    aws.recommend_rebalance()
    seen = source(aws).look()
    assert seen.announced is None
    assert "rebalance" in seen.hint
    aws.interrupt(0, "hibernate")
    seen = source(aws).look()
    assert seen.announced is None
    assert "hibernate" in seen.hint


def test_a_token_is_renewed_before_it_ends_and_when_the_service_has_forgotten_it(aws: AwsMetadata) -> None:
    clock = VirtualClock()
    watched = Aws(f"http://{aws.address}", clock)
    watched.look()
    clock.advance(3600 - 16)
    watched.look()
    assert len(aws.asked(TOKEN, "PUT")) == 1
    clock.advance(1)  # 15 s of it are left
    watched.look()
    assert len(aws.asked(TOKEN, "PUT")) == 2
    aws.forget_tokens()
    assert watched.look() == Seen()
    assert len(aws.asked(TOKEN, "PUT")) == 3


def test_the_old_protocol_is_spoken_only_where_there_are_no_tokens(aws: AwsMetadata) -> None:
    aws.tokens(version_1=True, refused=True)
    clock = VirtualClock()
    watched = Aws(f"http://{aws.address}", clock)
    aws.interrupt(100)
    assert announced(watched.look()).what == "terminate"
    assert all("x-aws-ec2-metadata-token" not in one.headers for one in aws.asked(ACTION))
    watched.look()
    assert len(aws.asked(TOKEN, "PUT")) == 1  # a lost answer costs a second: not at every look
    aws.tokens()
    clock.advance(aws_module.TOKEN_AGAIN_S)
    watched.look()
    assert "x-aws-ec2-metadata-token" in aws.asked(ACTION)[-1].headers


def test_another_web_server_is_not_taken_for_it(aws: AwsMetadata) -> None:
    aws.refuse(404)
    with pytest.raises(NoticeFault, match="not the metadata service"):
        source(aws).look()
    aws.refuse(None)
    aws._texts["instance-id"] = "welcome"
    with pytest.raises(NoticeFault, match="not the metadata service"):
        source(aws).look()


# --- GCP


def test_google_answers_the_moment_it_changes(gcp: GcpMetadata) -> None:
    watched = source(gcp)
    assert watched.look() == Seen()
    path = "/computeMetadata/v1/instance/preempted"
    assert gcp.asked(path)[0].path == path
    changing = threading.Thread(target=lambda: (wait_for(gcp, path + "?wait_for_change=true"), gcp.preempt()))
    changing.start()
    said = announced(watched.look())
    changing.join()
    assert (said.seconds_left, said.what) == (30, "preempted")
    asked = gcp.asked(path)[1].path
    assert "last_etag=" in asked
    assert "timeout_sec=60" in asked
    assert gcp.asked(path)[1].headers["metadata-flavor"] == "Google"


def wait_for(served: Metadata, path: str) -> None:
    with served.changed:
        assert served.changed.wait_for(lambda: any(one.path.startswith(path) for one in served.journal), 10)


def test_a_sigterm_is_classified(gcp: GcpMetadata) -> None:
    watched = source(gcp)
    assert watched.at_sigterm() == "Google knows of no preemption"
    gcp.preempt()
    assert watched.at_sigterm() == "Google says that the machine is preempted"


def test_an_answer_without_googles_name_is_not_googles(aws: AwsMetadata) -> None:
    aws.garble("TRUE")
    with pytest.raises(NoticeFault, match="not Google's"):
        Gcp(aws.address, CLOCK).look()


def test_the_users_grace_is_the_lead(gcp: GcpMetadata) -> None:
    gcp.preempt()
    assert announced(Gcp(gcp.address, CLOCK, lead_s=120).look()).seconds_left == 120


# --- Azure


def test_azure_events_of_others_are_theirs(azure: AzureMetadata) -> None:
    watched = source(azure)
    azure.schedule("Preempt", 30, ["somebody-else"])
    assert watched.look() == Seen()
    azure.schedule("Preempt", 30, ["TRAINER_0", "somebody-else"])
    said = announced(watched.look())
    assert 28 < said.seconds_left <= 30
    assert all(one.headers["metadata"] == "true" for one in azure.journal)
    assert watched.acknowledge() == ""  # the other would go with us
    assert azure.approved == []


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_what_ends_the_machine_is_announced_and_acknowledged(azure: AzureMetadata, kind: str) -> None:
    watched = source(azure)
    event = azure.schedule(kind, 20)
    assert announced(watched.look()).what == kind
    watched.abort()
    assert kind in watched.acknowledge()
    assert [one for _, one in azure.approved] == [event]


def test_a_freeze_is_a_hint_and_is_not_approved(azure: AzureMetadata) -> None:
    watched = source(azure)
    azure.schedule("Freeze", 20)
    seen = watched.look()
    assert seen.announced is None
    assert "Freeze" in seen.hint
    assert watched.acknowledge() == ""


def test_an_event_that_has_begun_leaves_nothing(azure: AzureMetadata) -> None:
    watched = source(azure)
    azure.begin(azure.schedule())
    assert announced(watched.look()).seconds_left == 0


def test_the_soonest_counts(azure: AzureMetadata) -> None:
    azure.schedule("Terminate", 300)
    azure.schedule("Preempt", 30)
    assert announced(source(azure).look()).what == "Preempt"


@pytest.mark.slow
def test_the_first_answer_may_take_its_time(azure: AzureMetadata) -> None:
    azure.block_first(3.0)  # more than any later one is waited for
    assert source(azure).look() == Seen()


@pytest.mark.parametrize(
    "document",
    [None, [], "x", {}, {"Events": {}}, {"Events": "x"}],
)
def test_what_is_no_list_of_events_is_a_fault(document: object) -> None:
    with pytest.raises(NoticeFault):
        events_of("me", document)


@pytest.mark.parametrize(
    "event",
    [None, 7, {}, {"EventId": 7}, {"EventId": "x", "Resources": 7}, {"EventId": "x", "Resources": [None, ["me"]]}],
)
def test_one_odd_event_does_not_hide_the_others(event: object) -> None:
    good = {"EventId": "1", "EventType": "Preempt", "Resources": ["me"], "NotBefore": 99}
    (found,) = events_of("me", {"Events": [event, good]})
    assert (found.id, found.kind, found.alone, found.not_before) == ("1", "Preempt", True, None)


# --- all of them, when they misbehave


@pytest.mark.parametrize("cloud", CLOUDS, indirect=True)
@pytest.mark.parametrize("body", ["", "<html>", "null", "[]", '{"action": 7}', "x" * (LIMIT + 1), b"\xff\x00"])
def test_garbage_is_a_fault(cloud: Metadata, body: str) -> None:
    cloud.garble(body)
    with pytest.raises(NoticeFault) as caught:
        source(cloud).look()
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("cloud", CLOUDS, indirect=True)
@pytest.mark.parametrize("status", [301, 400, 403, 429, 500, 503])
def test_so_is_a_refusal(cloud: Metadata, status: int) -> None:
    cloud.refuse(status)
    with pytest.raises(NoticeFault):
        source(cloud).look()


@pytest.mark.slow
@pytest.mark.parametrize("cloud", CLOUDS, indirect=True)
def test_so_is_silence_and_abort_ends_it(cloud: Metadata) -> None:
    cloud.hang()
    watched = source(cloud)
    began = time.monotonic()
    with pytest.raises(NoticeFault, match="did not answer"):
        watched.look()
    assert time.monotonic() - began < 20
    cloud.hang(False)
    watched.look()
    cloud.hang()
    asked = len(cloud.journal)
    ended: list[float] = []
    looking = threading.Thread(target=lambda: ended.append(_fault(watched)))
    looking.start()
    with cloud.changed:
        assert cloud.changed.wait_for(lambda: len(cloud.journal) > asked, 10)
    watched.abort()
    looking.join(10)
    assert ended
    with pytest.raises(NoticeFault):
        watched.look()


def test_azure_is_told_while_the_watcher_still_asks(azure: AzureMetadata) -> None:
    azure.schedule("Preempt", 30)
    watched = source(azure)
    watched.look()
    azure.hang()
    looking = threading.Thread(target=_fault, args=(watched,))
    asked = len(azure.journal)
    looking.start()
    with azure.changed:
        assert azure.changed.wait_for(lambda: len(azure.journal) > asked, 10)
    azure.hang(False)
    watched.abort()
    assert "Preempt" in watched.acknowledge()
    looking.join(10)
    with pytest.raises(NoticeFault):
        watched.look()  # it was told to end, and stays so


def _fault(watched: Source) -> float:
    with pytest.raises(NoticeFault):
        watched.look()
    return time.monotonic()


@pytest.mark.parametrize("kind", CLOUDS)
def test_so_is_nobody_there(kind: str) -> None:
    with metadata(kind) as served:
        watched = source(served)
    with pytest.raises(NoticeFault, match="cannot be reached"):
        watched.look()


def test_a_drip_ends_in_time_and_a_flood_of_headers_is_a_fault() -> None:
    """A byte now and then would satisfy a timeout for each read, for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while not over.wait(0.05):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        dripping = threading.Thread(target=drip)
        dripping.start()
        endpoint = Endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}", CLOCK)
        began = time.monotonic()
        with pytest.raises(NoticeFault, match="did not answer within"):
            endpoint.ask(timeout_s=0.5)
        assert time.monotonic() - began < 20  # the drip goes on for fifty
        over.set()
        dripping.join()


NO_HTTP = [
    b"",
    b"\x00\x01\x02\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    b"HTTP/1.1 abc OK\r\n\r\n",
    b"HTTP/1.1 200 " + b"x" * 70_000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
]


@pytest.mark.parametrize("answer", NO_HTTP, ids=range(len(NO_HTTP)))
def test_what_is_no_http_is_a_fault(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def once() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        answering = threading.Thread(target=once)
        answering.start()
        with pytest.raises(NoticeFault):
            Endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}", CLOCK).ask(timeout_s=2)
        answering.join()


@pytest.mark.parametrize("base", ["", "169.254.169.254", "ftp://x", "http://", "http://[::1", "http://x:99999"])
def test_what_is_no_address_is_refused(base: str) -> None:
    with pytest.raises(NoticeFault):
        Endpoint(base, CLOCK)


def test_a_password_in_an_address_is_never_said() -> None:
    said: list[str] = []
    for base in ("http://me:hunter22@127.0.0.1:1", "ftp://me:hunter22@x", "http://me:hunter22@[::1"):
        with pytest.raises(NoticeFault) as fault:
            said.append(Endpoint(base, CLOCK).ask(timeout_s=2).text())
        said.append(fault.value.message)
    assert "127.0.0.1:1 cannot be reached" in said[0]
    assert "hunter22" not in "".join(said)
