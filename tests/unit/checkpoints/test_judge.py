"""The set: what makes a Hugging Face checkpoint whole, weights only or torn, and what is said about it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from spotwarp.execution.checkpoints import Checkpoint, CheckpointClass, judge
from spotwarp.execution.checkpoints.examine import examine
from spotwarp.execution.checkpoints.members import members
from spotwarp.testing.checkpoints import huggingface_files, safetensors_file, torch_file, write_files

RESUMABLE, WEIGHTS_ONLY, TORN = CheckpointClass.RESUMABLE, CheckpointClass.WEIGHTS_ONLY, CheckpointClass.TORN
OPTIONAL = {"config.json", "training_args.bin", "scaler.pt", "README.md"}

SETS = {
    "full": {"README.md": b"model", "scaler.pt": torch_file(b"scale"), **huggingface_files(8)},
    "sharded": huggingface_files(8, shards=3),
    "adapter": huggingface_files(8, adapter=True),
    "eight ranks": huggingface_files(8, ranks=8),
}


def without(files: dict[str, bytes], *names: str) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name not in names}


def judged(root: Path, files: dict[str, bytes], *, world_size: int | None = None) -> Checkpoint:
    write_files(root / "checkpoint-8", files)
    return judge(root, b"checkpoint-8", world_size=world_size)


@pytest.mark.parametrize("name", SETS)
def test_a_whole_set_is_resumable(tmp_path: Path, name: str) -> None:
    files = SETS[name]
    assert judged(tmp_path, files) == Checkpoint(
        path=b"checkpoint-8",
        cls=RESUMABLE,
        step=8,
        framework="huggingface",
        reason="",
        files=len(files),
        bytes=sum(map(len, files.values())),
        loss=2.25,
        world_size=8 if name == "eight ranks" else 1,
    )


@pytest.mark.parametrize(("name", "lost"), [(name, lost) for name, files in SETS.items() for lost in files])
def test_a_set_that_lost_any_file_but_an_optional_one_is_not_resumable(tmp_path: Path, name: str, lost: str) -> None:
    found = judged(tmp_path, without(SETS[name], lost), world_size=8 if name == "eight ranks" else 1)
    assert (found.cls is RESUMABLE) == (lost in OPTIONAL)
    assert (found.reason == "") == (lost in OPTIONAL)


@pytest.mark.parametrize("name", SETS)
def test_a_set_killed_at_any_file_boundary_is_not_resumable_before_the_last(tmp_path: Path, name: str) -> None:
    written: dict[str, bytes] = {}
    for member, content in SETS[name].items():
        assert judged(tmp_path, written).cls is not RESUMABLE
        written[member] = content
    assert "trainer_state.json" in written
    assert judged(tmp_path, written).cls is RESUMABLE


@pytest.mark.parametrize("name", SETS)
def test_a_set_with_any_file_halved_or_emptied_is_torn_and_the_file_is_named(tmp_path: Path, name: str) -> None:
    for member in without(SETS[name], "README.md"):
        for content in (SETS[name][member][:-1], SETS[name][member][: len(SETS[name][member]) // 2], b""):
            found = judged(tmp_path, SETS[name] | {member: content})
            assert found.cls is TORN
            assert member in found.reason


def test_a_save_in_progress_says_so(tmp_path: Path) -> None:
    found = judged(tmp_path, SETS["full"] | {"checkpoint-is-incomplete.txt": b""})
    assert (found.cls, found.reason) == (TORN, "checkpoint-is-incomplete.txt says that it was being written")


def test_an_absent_an_empty_and_a_hollow_directory_are_torn(tmp_path: Path) -> None:
    assert "vanished" in judge(tmp_path, b"checkpoint-8").reason
    (tmp_path / "checkpoint-8" / "optimizer_0").mkdir(parents=True)
    found = judge(tmp_path, b"checkpoint-8")
    assert (found.cls, found.reason, found.step) == (TORN, "the directory is empty", 8)
    shutil.rmtree(tmp_path / "checkpoint-8")
    (tmp_path / "checkpoint-8").write_bytes(b"a file")
    assert judge(tmp_path, b"checkpoint-8").cls is TORN


@pytest.mark.parametrize(
    ("lost", "named"),
    [("optimizer.pt", "an optimizer"), ("scheduler.pt", "a scheduler"), ("rng_state.pth", "a random state")],
)
def test_the_reason_names_what_the_trainer_would_silently_replace(tmp_path: Path, lost: str, named: str) -> None:
    assert judged(tmp_path, without(SETS["full"], lost)).reason == f"it lacks {named}"


@pytest.mark.parametrize(
    "state",
    [b"[]", b"{}", b'{"global_step": null}', b'{"global_step": "8"}', b'{"global_step": true}', b'{"global_step": -1}'],
)
def test_a_state_without_a_step_is_torn(tmp_path: Path, state: bytes) -> None:
    assert judged(tmp_path, SETS["full"] | {"trainer_state.json": state}).reason == "trainer_state.json has no step"


@pytest.mark.parametrize(
    "state", [b'{"global_step": 8', b"\xff\xfe", b"[" * 100_000, b'{"global_step": ' + b"9" * 5000 + b"}"]
)
def test_a_state_that_is_no_json_is_torn(tmp_path: Path, state: bytes) -> None:
    assert "no JSON" in judged(tmp_path, SETS["full"] | {"trainer_state.json": state}).reason


def test_the_number_in_the_name_must_be_the_states(tmp_path: Path) -> None:
    found = judged(tmp_path, SETS["full"] | {"trainer_state.json": b'{"global_step": 7}'})
    assert (found.cls, found.step, found.reason) == (TORN, 8, "trainer_state.json is of step 7, not 8")


@pytest.mark.parametrize(
    ("history", "loss"),
    [
        ("[]", None),
        ('[{"loss": 3}]', 3.0),
        ('[{"loss": 3.5}, {"eval_loss": 1.0}, {"train_loss": 2.0}]', 3.5),
        ('[{"loss": 3.5}, {"loss": NaN}]', None),
        ('[{"loss": 3.5}, {"loss": Infinity}]', None),
        ('[{"loss": 3.5}, {"loss": "low"}, 7, {"loss": true}]', 3.5),
        ('[{"loss": ' + "9" * 400 + "}]", None),
        ('{"loss": 3.5}', None),
    ],
)
def test_the_loss_is_the_last_finite_one_logged(tmp_path: Path, history: str, loss: float | None) -> None:
    state = f'{{"global_step": 8, "log_history": {history}}}'.encode()
    found = judged(tmp_path, SETS["full"] | {"trainer_state.json": state})
    assert (found.cls, found.loss) == (RESUMABLE, loss)


@pytest.mark.parametrize("with_state", [True, False])
def test_a_save_of_the_weights_only_is_no_alarm(tmp_path: Path, with_state: bool) -> None:
    kept = {"adapter_config.json", "adapter_model.safetensors"} | ({"trainer_state.json"} if with_state else set())
    files = {name: content for name, content in SETS["adapter"].items() if name in kept}
    found = judged(tmp_path, files | {"README.md": b"adapter"})
    assert (found.cls, found.loss) == (WEIGHTS_ONLY, 2.25 if with_state else None)
    assert "weights only" in found.reason


def test_a_scaler_alone_is_part_of_a_set_not_a_save_of_weights(tmp_path: Path) -> None:
    files = without(SETS["full"], "optimizer.pt", "scheduler.pt", "rng_state.pth")
    assert judged(tmp_path, files).cls is TORN


class TestWeights:
    def test_without_any_a_set_is_torn(self, tmp_path: Path) -> None:
        assert judged(tmp_path, without(SETS["full"], "model.safetensors")).reason == "it has no weights"

    def test_a_file_without_a_single_tensor_is_none(self, tmp_path: Path) -> None:
        found = judged(tmp_path, SETS["full"] | {"model.safetensors": safetensors_file({})})
        assert found.reason == "model.safetensors holds no tensors"

    def test_torchs_own_format_will_do(self, tmp_path: Path) -> None:
        files = without(SETS["full"], "model.safetensors") | {"pytorch_model.bin": torch_file(b"w" * 99)}
        assert judged(tmp_path, files).cls is RESUMABLE
        files = without(SETS["adapter"], "adapter_model.safetensors") | {"adapter_model.bin": torch_file(b"w" * 99)}
        assert judge(write_files(tmp_path / "a" / "checkpoint-8", files).parent, b"checkpoint-8").cls is RESUMABLE

    def test_adapters_may_lie_in_folders_of_their_own_each_with_its_configuration(self, tmp_path: Path) -> None:
        moved = {f"policy/{name}" if "adapter" in name else name: data for name, data in SETS["adapter"].items()}
        assert judged(tmp_path, moved).cls is RESUMABLE
        (tmp_path / "checkpoint-8" / "policy" / "adapter_config.json").unlink()
        assert judge(tmp_path, b"checkpoint-8").reason == "policy/adapter_config.json is missing"

    @pytest.mark.parametrize(
        ("index", "reason"),
        [
            ({}, "has no map"),
            ({"weight_map": {}}, "has no map"),
            ({"weight_map": {"layer.0": 7}}, "has no map"),
            ({"weight_map": {"layer.0": "../checkpoint-7/model.safetensors"}}, "is missing"),
            ({"weight_map": {"layer.0": "model-00009-of-00003.safetensors"}}, "00009-of-00003.safetensors is missing"),
            ({"weight_map": {"layer.1": "model-00001-of-00003.safetensors"}}, "lacks tensor layer.1"),
            ({"weight_map": {"layer.\ud800": "model-00001-of-00003.safetensors"}}, r"lacks tensor layer.\ud800"),
        ],
    )
    def test_an_index_must_agree_with_its_shards(self, tmp_path: Path, index: object, reason: str) -> None:
        found = judged(tmp_path, SETS["sharded"] | {"model.safetensors.index.json": json.dumps(index).encode()})
        assert found.cls is TORN
        assert reason in found.reason
        found.reason.encode()

    def test_shards_of_torchs_format_must_all_be_there(self, tmp_path: Path) -> None:
        index = {"weight_map": {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}}
        shards = {name: torch_file(b"w") for name in index["weight_map"].values()}
        shards["pytorch_model.bin.index.json"] = json.dumps(index).encode()
        files = without(SETS["full"], "model.safetensors") | shards
        assert judged(tmp_path, files).cls is RESUMABLE
        (tmp_path / "checkpoint-8" / "pytorch_model-00002-of-00002.bin").unlink()
        assert judge(tmp_path, b"checkpoint-8").cls is TORN


class TestRanks:
    @pytest.mark.parametrize("lost", [0, 3, 6])
    def test_a_gap_is_torn_whoever_judges(self, tmp_path: Path, lost: int) -> None:
        found = judged(tmp_path, without(SETS["eight ranks"], f"rng_state_{lost}.pth"))
        assert (found.cls, found.reason) == (TORN, f"rng_state_{lost}.pth is missing")

    def test_the_last_rank_is_missed_by_who_knows_the_number_of_ranks(self, tmp_path: Path) -> None:
        files = without(SETS["eight ranks"], "rng_state_7.pth")
        assert judged(tmp_path, files, world_size=8).reason == "it has the random state of 7 of 8 ranks"
        state = json.loads(files["trainer_state.json"]) | {"world_size": 8}
        assert judged(tmp_path, files | {"trainer_state.json": json.dumps(state).encode()}).cls is TORN

    def test_a_huge_rank_costs_nothing(self, tmp_path: Path) -> None:
        assert judged(tmp_path, SETS["full"] | {"rng_state_999999999999.pth": torch_file(b"r")}).cls is TORN


class TestSharedState:
    """Where the trainer leaves optimizer and weights to DeepSpeed, FSDP, XLA or SageMaker."""

    DEEPSPEED = without(SETS["eight ranks"], "optimizer.pt", "scheduler.pt", "model.safetensors") | {
        "latest": b"global_step7",
        "zero_to_fp32.py": b"",
        "global_step7/mp_rank_00_model_states.pt": torch_file(b"model"),
        **{f"global_step7/bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt": torch_file(b"o") for r in range(8)},
    }

    def test_deepspeed_holds_weights_optimizer_and_scheduler_under_a_step_of_its_own(self, tmp_path: Path) -> None:
        found = judged(tmp_path, self.DEEPSPEED)
        assert (found.cls, found.step, found.world_size) == (RESUMABLE, 8, 8)

    @pytest.mark.parametrize(
        ("lost", "reason"),
        [
            ("latest", "latest, which is written after global_step7/, is missing"),
            ("global_step7/mp_rank_00_model_states.pt", "global_step7/ has no model states"),
            (
                "global_step7/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt",
                "global_step7/ lacks the optimizer of rank 3",
            ),
        ],
    )
    def test_deepspeed_with_a_part_missing_is_torn(self, tmp_path: Path, lost: str, reason: str) -> None:
        found = judged(tmp_path, without(self.DEEPSPEED, lost))
        assert (found.cls, found.reason) == (TORN, reason)

    def test_deepspeeds_pointer_must_point_to_what_is_there(self, tmp_path: Path) -> None:
        found = judged(tmp_path, self.DEEPSPEED | {"latest": b"global_step8"})
        assert found.reason == "latest names global_step8, which is not there"

    def test_deepspeed_with_a_cut_shard_is_torn(self, tmp_path: Path) -> None:
        name = "global_step7/bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt"
        found = judged(tmp_path, self.DEEPSPEED | {name: self.DEEPSPEED[name][:-9]})
        assert found.cls is TORN
        assert name in found.reason

    def distributed(self, folder: str) -> dict[str, bytes]:
        pieces = [
            {"relative_path": "__0_0.distcp", "offset": 0, "length": 40},
            {"relative_path": "__0_0.distcp", "offset": 40, "length": 60},
            {"relative_path": "__1_0.distcp", "offset": 0, "length": 80},
        ]
        metadata = pickle.dumps({at: piece for at, piece in enumerate(pieces)}, protocol=4)
        return {
            f"{folder}/__0_0.distcp": b"0" * 100,
            f"{folder}/__1_0.distcp": b"1" * 80,
            f"{folder}/.metadata": metadata,
        }

    def fsdp(self) -> dict[str, bytes]:
        rest = without(huggingface_files(8, ranks=2), "optimizer.pt", "model.safetensors")
        return self.distributed("pytorch_model_fsdp_0") | self.distributed("optimizer_0") | rest

    def test_fsdp_in_pieces_is_resumable(self, tmp_path: Path) -> None:
        assert judged(tmp_path, self.fsdp()).cls is RESUMABLE

    @pytest.mark.parametrize("folder", ["pytorch_model_fsdp_0", "optimizer_0"])
    def test_fsdp_with_a_piece_missing_or_cut_is_torn(self, tmp_path: Path, folder: str) -> None:
        for leaf, content in self.distributed("x").items():
            name = leaf.replace("x", folder, 1)
            for files in (without(self.fsdp(), name), self.fsdp() | {name: content[:-1]}):
                shutil.rmtree(tmp_path / "checkpoint-8", ignore_errors=True)
                found = judged(tmp_path, files)
                assert found.cls is TORN
                assert name in found.reason

    def test_a_rank_that_left_shared_state_must_have_left_its_random_state(self, tmp_path: Path) -> None:
        found = judged(tmp_path, without(self.fsdp(), "rng_state_1.pth"))
        assert (found.cls, found.reason) == (TORN, "rng_state_1.pth is missing")
        found = judge(
            write_files(tmp_path / "ds" / "checkpoint-8", without(self.DEEPSPEED, "rng_state_7.pth")).parent,
            b"checkpoint-8",
        )
        assert (found.cls, found.reason) == (TORN, "rng_state_7.pth is missing")

    def test_fsdp_in_one_file_each_is_resumable(self, tmp_path: Path) -> None:
        files = without(SETS["full"], "optimizer.pt", "model.safetensors")
        files |= {"optimizer.bin": torch_file(b"o"), "pytorch_model_fsdp.bin": torch_file(b"w")}
        assert judged(tmp_path, files).cls is RESUMABLE

    def test_optimizers_per_rank_must_all_be_there(self, tmp_path: Path) -> None:
        parts = {f"rank{rank}-of-4-optimizer.pt": torch_file(b"o") for rank in range(4)}
        files = without(SETS["full"], "optimizer.pt") | parts
        assert judged(tmp_path, files).cls is RESUMABLE
        (tmp_path / "checkpoint-8" / "rank3-of-4-optimizer.pt").unlink()
        assert judge(tmp_path, b"checkpoint-8").reason == "the optimizer of rank 3 is missing"

    def test_partial_optimizers_are_an_optimizer(self, tmp_path: Path) -> None:
        files = without(SETS["full"], "optimizer.pt") | {"optimizer.pt_0": torch_file(b"o")}
        assert judged(tmp_path, files).cls is RESUMABLE


class TestOddFiles:
    def test_a_link_within_the_workspace_is_judged_through_its_target(self, tmp_path: Path) -> None:
        directory = write_files(tmp_path / "ws" / "checkpoint-8", SETS["full"])
        (directory / "model.safetensors").rename(tmp_path / "ws" / "base.safetensors")
        (directory / "model.safetensors").symlink_to("../base.safetensors")
        assert judge(tmp_path / "ws", b"checkpoint-8").cls is RESUMABLE
        os.truncate(tmp_path / "ws" / "base.safetensors", 100)
        assert judge(tmp_path / "ws", b"checkpoint-8").cls is TORN

    @pytest.mark.parametrize("target", ["../../outside.safetensors", "../nothing", "model.safetensors", ".."])
    def test_a_link_to_what_a_restored_workspace_would_not_have_is_torn(self, tmp_path: Path, target: str) -> None:
        directory = write_files(tmp_path / "ws" / "checkpoint-8", SETS["full"])
        (directory / "model.safetensors").rename(tmp_path / "outside.safetensors")
        (directory / "model.safetensors").symlink_to(target)
        found = judge(tmp_path / "ws", b"checkpoint-8")
        assert found.cls is TORN
        assert found.reason.startswith("model.safetensors is ")

    def test_a_link_to_a_neighbour_whose_name_starts_like_the_workspace_leads_out(self, tmp_path: Path) -> None:
        directory = write_files(tmp_path / "ws" / "checkpoint-8", SETS["full"])
        (tmp_path / "ws-2").mkdir()
        (directory / "optimizer.pt").rename(tmp_path / "ws-2" / "optimizer.pt")
        (directory / "optimizer.pt").symlink_to("../../ws-2/optimizer.pt")
        assert judge(tmp_path / "ws", b"checkpoint-8").reason == "optimizer.pt is a link out of the workspace"

    def test_a_fifo_is_never_opened(self, tmp_path: Path) -> None:
        directory = write_files(tmp_path / "checkpoint-8", without(SETS["full"], "optimizer.pt"))
        os.mkfifo(directory / "optimizer.pt")
        assert judge(tmp_path, b"checkpoint-8").reason == "optimizer.pt is not a regular file"

    def test_a_file_that_becomes_a_fifo_or_vanishes_while_it_is_judged_is_a_fault(self, tmp_path: Path) -> None:
        directory = write_files(tmp_path / "checkpoint-8", SETS["full"])
        listed = members(tmp_path, b"checkpoint-8", deep=True)
        (directory / "optimizer.pt").unlink()
        os.mkfifo(directory / "optimizer.pt")
        (directory / "scheduler.pt").unlink()
        assert examine(listed).faults == [
            "optimizer.pt is not a regular file",
            "scheduler.pt vanished while it was read",
        ]

    def test_what_nobody_knows_is_counted_and_not_judged(self, tmp_path: Path) -> None:
        directory = write_files(tmp_path / "checkpoint-8", SETS["full"])
        write_files(
            directory, {"notes.pt": b"not torch", "data.bin": b"", "log/metrics.json": b"{}\n{}", "x.zip": b"PK"}
        )
        (directory / os.fsdecode(b"\xff\n")).write_bytes(b"")
        os.mkfifo(directory / "socket")
        found = judge(tmp_path, b"checkpoint-8")
        assert (found.cls, found.files) == (RESUMABLE, len(SETS["full"]) + 6)

    def test_names_that_are_not_text_do_not_break_the_reason(self, tmp_path: Path) -> None:
        directory = write_files(tmp_path / "checkpoint-8", SETS["full"])
        (directory / os.fsdecode(b"\xff\x1b[2J.safetensors")).write_bytes(b"short")
        found = judge(tmp_path, b"checkpoint-8")
        assert found.cls is TORN
        assert found.reason.isprintable()
        found.reason.encode()

    def test_a_bottomless_directory_is_refused(self, tmp_path: Path) -> None:
        directory = write_files(tmp_path / "checkpoint-8", SETS["full"])
        directory.joinpath(*["d"] * 30).mkdir(parents=True)
        assert judge(tmp_path, b"checkpoint-8").cls is TORN

    def test_a_long_list_of_faults_is_cut(self, tmp_path: Path) -> None:
        found = judged(tmp_path, SETS["sharded"] | {f"extra-{n}.safetensors": b"" for n in range(50)})
        assert found.reason.endswith("; and 47 more")
