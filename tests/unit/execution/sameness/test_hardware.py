"""The GPUs that a command sees, from what the driver shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwarp.execution.sameness.hardware import Gpus, gpus, listed, visible

NOTHING = {"PATH": "/nowhere"}


def machine(root: Path, *models: str) -> Path:
    for number, model in enumerate(models):
        place = root / f"proc/driver/nvidia/gpus/0000:{number:02}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 46\nGPU UUID: \t GPU-{number}\n")
    (root / "proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
    (root / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12.2.0\n"
    )
    return root


def test_from_the_driver(tmp_path: Path) -> None:
    found = gpus(NOTHING, root=machine(tmp_path, "NVIDIA H200", "NVIDIA H200"))
    assert found == Gpus(2, ("NVIDIA H200", "NVIDIA H200"), "570.86.15")
    assert found.kinds == ("NVIDIA H200",)


def test_none(tmp_path: Path) -> None:
    assert gpus(NOTHING, root=tmp_path) == Gpus(0)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()  # another maker's: not none, but who knows how many
    assert gpus(NOTHING, root=tmp_path) == Gpus(None)


def test_from_the_tool(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aa)'\necho '  MIG 1g.10gb     Device  0:'\n"
    )
    tool.chmod(0o755)
    assert gpus({"PATH": f"{tool.parent}:/usr/bin:/bin"}, root=tmp_path) == Gpus(1, ("NVIDIA A100-SXM4-80GB",))
    tool.write_text("#!/bin/sh\necho 'GPU 0: X (UUID: GPU-aa)'; exit 9\n")  # no driver
    assert gpus({"PATH": f"{tool.parent}:/usr/bin:/bin"}, root=tmp_path) == Gpus(0)
    assert listed("No devices were found\n") == []


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (None, 4),
        ("0,1", 2),
        ("", 0),
        ("-1", 0),
        ("0,7,1", 1),
        ("GPU-a,GPU-b", 2),
        ("0, 1 ,2,3,3", 4),
        ("MIG-a,MIG-b", 2),
    ],
)  # fmt: skip
def test_what_cuda_shows(value: str | None, count: int) -> None:
    assert visible(4, {} if value is None else {"CUDA_VISIBLE_DEVICES": value}) == count
