"""SIGKILL to the client, the S3 server, or both at once, in the middle of a sync: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from spotwarp.testing.pytest_seaweed import BUCKET
from spotwarp.testing.seaweed import Seaweed, seaweed
from spotwarp.testing.world import World, forks, states, tree

pytestmark = pytest.mark.slow

SEED = 20
CLIENT, SERVER, BOTH = "client", "server", "both"
KILLED = [CLIENT, SERVER, BOTH] * 2


def restarted(server: Seaweed) -> threading.Thread:
    """Starts the server again as soon as it is dead."""

    def start() -> None:
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        server.kill()
        server.start()

    thread = threading.Thread(target=start)
    thread.start()
    return thread


def test_what_was_acknowledged_survives_kills_of_client_and_server(tmp_path: Path) -> None:
    looks = states(tmp_path)
    chance = random.Random(SEED)
    with seaweed(tmp_path / "server", buckets=(BUCKET,)) as server, forks() as (root, made):
        undisturbed = World(root / "0", made, remote=f"s3://{BUCKET}/0", env=server.env()).session()
        assert undisturbed.code == 0, undisturbed.output
        for turn, killed in enumerate(KILLED, 1):
            at, after = chance.randrange(8, undisturbed.value + 1), chance.random() < 0.5
            print(f"{killed} killed {'after' if after else 'before'} call {at} of {undisturbed.value}")
            place = World(root / str(turn), made, remote=f"s3://{BUCKET}/{turn}", env=server.env())
            again = None if killed == CLIENT else restarted(server)
            pids = {CLIENT: [0], SERVER: [server.pid], BOTH: [server.pid, 0]}[killed]
            ended = place.session(at=at, after=after, kill=pids)
            if again is not None:
                again.join(120)
                assert not again.is_alive()
            if killed == SERVER:
                assert ended.code == 0, ended.output
                assert place.acknowledged() == len(looks) - 1
            else:
                assert ended.died, ended
            kept = place.acknowledged()
            assert place.audited() in looks[kept : kept + 2], (killed, at, after)
            assert place.spotwarp(place.workspace, ["sync", "--takeover"]) == [0], place.output
            assert place.audited() == tree(place.workspace)
