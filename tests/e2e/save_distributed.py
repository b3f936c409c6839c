"""Save with PyTorch's distributed checkpoints: `python save_distributed.py OUT`, a tiny model on the CPU, any ranks.

Leaves `OUT/step-4` (model and optimiser) and `OUT/weights-4` (model alone).
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard


def main(out: str) -> None:
    """One step of a sharded model, then both saves."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 8))
    if dist.is_initialized():
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 32)).sum().backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state, "step": 4}, checkpoint_id=f"{out}/step-4")
    dcp.save({"model": weights}, checkpoint_id=f"{out}/weights-4")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
