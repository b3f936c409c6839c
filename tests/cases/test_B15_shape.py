"""Case B15: fewer or more GPUs after a failover. The shape is part of the job, and looked at before the download."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from spotwarp.testing.faultproxy import FaultProxy
from spotwarp.testing.product import Machine
from spotwarp.testing.pytest_product import bucket, rent, ws
from spotwarp.testing.pytest_seaweed import s3_proxy, s3_url, seaweed_server
from spotwarp.testing.seaweed import Seaweed

__all__ = ["bucket", "rent", "s3_proxy", "s3_url", "seaweed_server", "ws"]

Rent = Callable[..., Machine]

pytestmark = pytest.mark.slow

# As many ranks as the environment says, one random state each; refuses, as sharded optimisers do, any other number.
STUB = """
import json, os, sys, time
from pathlib import Path
from spotwarp.testing.checkpoints import huggingface_files, write_files

ranks, out = int(os.environ["NGPU"]), Path("out")
found = sorted(out.glob("checkpoint-*"))
if found:
    was = len(list(found[-1].glob("rng_state_*")))
    if was != ranks:
        sys.exit(f"world size was {was} is {ranks}")
    print("resumed", flush=True)
    sys.exit(3)
staging = write_files(out / "tmp-checkpoint-10", huggingface_files(10, ranks=ranks))
staging.rename(out / "checkpoint-10")
print("saved", flush=True)
time.sleep(600)
"""


def test_B15_another_number_of_ranks_is_refused_before_the_download(
    rent: Rent, seaweed_server: Seaweed, s3_proxy: FaultProxy, s3_url: str
) -> None:
    env = seaweed_server.env(endpoint=s3_proxy.endpoint)
    first = rent("first", remote=s3_url, env={**env, "NGPU": "8"}).init()
    first.file("stub.py", STUB)
    first.file("data.bin", b"d" * 500_000)
    program = first.start("run", "--", sys.executable, "stub.py")
    program.until(lambda: any(s["resumable"] for s in first.snapshots()), "the checkpoint in the store", 90)
    first.die()

    fewer = rent("fewer", remote=s3_url, env={**env, "NGPU": "4"}).init()
    s3_proxy.forget()
    refused = fewer("run", "--json", code=125)
    assert "out/checkpoint-10 does not fit here: it was written by 8 process(es), this command starts 4" in refused.err
    assert "--allow-other-shape" in refused.err
    assert [s.path for s in s3_proxy.seen if "/packs/" in s.path or "/manifests/" in s.path] == []
    assert [path.name for path in fewer.path.iterdir()] == [".spotwarp"]
    assert fewer.facts("status", code=None)["generation"] == 1  # the run was not taken
    assert json.loads(refused.err.splitlines()[-1])["error"] == "OtherShape"

    # Allowed explicitly, the trainer decides for itself.
    allowed = fewer("run", "--allow-other-shape", code=1)
    assert "world size was 8 is 4" in allowed.err
    assert "processes: was 8, is 4" in allowed.err
    # What was allowed once is not for ever: the checkpoint is still of eight.
    fewer("run", code=125)

    same = rent("same", remote=s3_url, env={**env, "NGPU": "8"}).init()
    assert same("run", code=3).out == b"resumed\n"
