"""Where SpotWarp runs: from the environment and from what the firmware says, read once.

Owns what a SIGTERM leaves on which platform, when the user has not said so. `detect` only reads files below `root` and
the environment; it asks nobody, so it cannot hang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 30.0
_DMI = "sys/class/dmi/id"
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


@dataclass(frozen=True, slots=True)
class Platform:
    """`cloud`: aws, gcp, azure or "". `grace_s`: what a SIGTERM leaves by default, and `why`, for people."""

    cloud: str
    grace_s: float
    why: str
    slurm: bool = False


def detect(env: Mapping[str, str], root: Path = Path("/")) -> Platform:
    """Look once. What cannot be read says nothing."""
    grace_s, why = _grace(env, root)
    return Platform(_cloud(env, root), grace_s, why, "SLURM_JOB_ID" in env)


def marketplace(env: Mapping[str, str]) -> str:
    """Whose machine this is where strangers rent theirs out; "" elsewhere, as far as the environment says."""
    for variable, name in (("RUNPOD_POD_ID", "RunPod"), ("VAST_CONTAINERLABEL", "Vast.ai")):
        if env.get(variable):
            return name
    return ""


def _grace(env: Mapping[str, str], root: Path) -> tuple[float, str]:
    """The innermost one who ends us decides."""
    if env.get("SLURM_JOB_ID"):
        return GRACE_S, "Slurm's usual KillWait; your partition's GraceTime may differ"
    if env.get("RUNPOD_POD_ID"):
        return 5.0, "RunPod"
    if env.get("KUBERNETES_SERVICE_HOST"):
        return GRACE_S, "the default of Kubernetes; a pod's terminationGracePeriodSeconds may differ"
    if (root / ".dockerenv").exists():
        return 10.0, "the default of `docker stop`"
    return GRACE_S, "the default"


def _cloud(env: Mapping[str, str], root: Path) -> str:
    """An address of a metadata service in the environment counts for as much as the firmware's word."""
    for variable, cloud in (
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "aws"),
        ("GCE_METADATA_HOST", "gcp"),
        ("SPOTWARP_AZURE_METADATA_ENDPOINT", "azure"),
    ):
        if env.get(variable):
            return cloud

    def word(name: str) -> str:
        try:
            return (root / name).read_bytes()[:200].decode("ascii", "replace").strip().lower()
        except OSError:
            return ""

    vendor = word(f"{_DMI}/sys_vendor")
    # Older types run on Xen and name Amazon only in their versions; what begins with ec2 is Amazon's by its word.
    amazon = (vendor, word(f"{_DMI}/bios_vendor"), word(f"{_DMI}/bios_version"), word(f"{_DMI}/product_version"))
    if any("amazon" in one for one in amazon) or word("sys/hypervisor/uuid").startswith("ec2"):
        return "aws"
    if word(f"{_DMI}/product_name").startswith("google"):
        return "gcp"
    hyperv = vendor == "microsoft corporation" and word(f"{_DMI}/product_name") == "virtual machine"
    if hyperv or word(f"{_DMI}/chassis_asset_tag") == _AZURE_TAG:
        return "azure"
    return ""
