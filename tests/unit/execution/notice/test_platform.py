"""Where we run, from the environment and from the firmware's words below a root of the test's."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwarp.execution.notice.platform import detect

FIRMWARE = [
    ({"sys_vendor": "Amazon EC2\n"}, "aws"),
    ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "aws"),
    ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
    ({"sys_vendor": "Google", "product_name": "Eve"}, ""),  # a laptop
    ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, "azure"),
    ({"sys_vendor": "Microsoft Corporation", "product_name": "Surface Laptop"}, ""),
    ({"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, "azure"),
    ({"sys_vendor": "QEMU"}, ""),
    ({"sys_vendor": "\xff" * 5000}, ""),
    ({}, ""),
]


@pytest.mark.parametrize(("words", "cloud"), FIRMWARE)
def test_the_firmware_names_the_cloud(tmp_path: Path, words: dict[str, str], cloud: str) -> None:
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    for name, word in words.items():
        (tmp_path / "sys/class/dmi/id" / name).write_text(word)
    assert detect({}, tmp_path).cloud == cloud


def test_an_old_amazon_machine(tmp_path: Path) -> None:
    (tmp_path / "sys/hypervisor").mkdir(parents=True)
    (tmp_path / "sys/hypervisor/uuid").write_text("ec2e1916-9099-7caf-fd21-012345abcdef\n")
    assert detect({}, tmp_path).cloud == "aws"


@pytest.mark.parametrize(
    ("variable", "cloud"),
    [
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "aws"),
        ("GCE_METADATA_HOST", "gcp"),
        ("SPOTWARP_AZURE_METADATA_ENDPOINT", "azure"),
    ],
)
def test_so_does_an_address_in_the_environment(tmp_path: Path, variable: str, cloud: str) -> None:
    assert detect({variable: "http://127.0.0.1:1"}, tmp_path).cloud == cloud
    assert detect({variable: ""}, tmp_path).cloud == ""


@pytest.mark.parametrize(
    ("env", "grace_s", "why"),
    [
        ({}, 30, "the default"),
        ({"RUNPOD_POD_ID": "x"}, 5, "RunPod"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 30, "Kubernetes"),
        ({"SLURM_JOB_ID": "7"}, 30, "Slurm"),
        ({"SLURM_JOB_ID": "7", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 30, "Slurm"),
        ({"RUNPOD_POD_ID": "x", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 5, "RunPod"),
    ],
)
def test_the_platform_says_what_a_sigterm_leaves(tmp_path: Path, env: dict[str, str], grace_s: float, why: str) -> None:
    found = detect(env, tmp_path)
    assert found.grace_s == grace_s
    assert why in found.why


def test_docker_leaves_ten_seconds(tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()
    assert detect({}, tmp_path).grace_s == 10
    assert detect({"RUNPOD_POD_ID": "x"}, tmp_path).grace_s == 5
