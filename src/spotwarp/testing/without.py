"""SpotWarp with one of its protections switched off, from outside, for the product has no switches.

    python -m spotwarp.testing.without NAME [--fault FAULT] -- run --command 'python train.py'

NAME is a protection (`PROTECTIONS`), or `nothing`; FAULT a misfortune (`FAULTS`). A test or a demo that stays green
without a protection does not show it. Patches modules of this process and nothing else; must never be imported by the
product.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final


def _patch(module: str, name: str, replacement: Callable[[Any], object]) -> None:
    """Put what `replacement` makes of `name` of `module` in its place, wherever the product has imported it."""
    import_module("spotwarp.execution.job")
    import_module("spotwarp.cli.app")
    original = getattr(import_module(module), name)
    new = replacement(original)
    for known in [one for called, one in sys.modules.items() if called.startswith("spotwarp.")]:
        for other, value in list(vars(known).items()):
            if value is original:
                vars(known)[other] = new


def fence() -> None:
    """A zombie is not told, and not refused: whoever has lost the run goes on committing."""

    def lenient(refusal: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(state: Any, entry: Any) -> Any:
            refused = refusal(state, entry)
            return None if refused is not None and refused.fenced else refused

        return refuse

    _patch("spotwarp.persistence.runlog.fold", "refusal", lenient)
    _patch("spotwarp.persistence.runlog.fold", "lost_run", lambda _: lambda *_, **__: None)


def torn_check() -> None:
    """A checkpoint that is incomplete, still being written, or changing is called resumable."""
    resumable = import_module("spotwarp.execution.checkpoints").CheckpointClass.RESUMABLE

    def credulous(judge: Callable[..., Any]) -> Callable[..., Any]:
        def believe(*arguments: Any, **options: Any) -> Any:
            verdict = judge(*arguments, **options)
            return verdict if verdict.step is None else replace(verdict, cls=resumable, reason="")

        return believe

    _patch("spotwarp.execution.checkpoints", "judge", credulous)
    _patch(
        "spotwarp.execution.syncing.judging",
        "judge_all",
        lambda judge_all: lambda root, entries, **_: judge_all(root, entries, settle_s=0),
    )
    _patch("spotwarp.persistence.backup.outcome", "demoted", lambda _: lambda facts, reasons: tuple(facts))


def read_back() -> None:
    """What the store acknowledged is believed."""
    verified = import_module("spotwarp.persistence.receipts").Verified

    def believe(store: object, run: str, committed: Any, *, thorough: bool, **_: object) -> Any:
        return verified(committed.entry, thorough)

    _patch("spotwarp.persistence.receipts", "verify", lambda _: believe)


def set_aside() -> None:
    """Torn checkpoints keep their names, in restores and on the disk."""
    _patch("spotwarp.persistence.entries", "renamed_for_torn", lambda _: lambda manifest, *_, **__: manifest)
    _patch("spotwarp.execution.syncing.judging", "blocking", lambda _: lambda root: [])


def claim_wait() -> None:
    """A run is claimed at once, though its holder beats, and though it has been given notice and is still storing."""
    turn = import_module("spotwarp.persistence.runlog.lease").Turn

    def hurry(log: Any, store: object, **_: object) -> Any:
        return turn(log.head().state.generation, "impatience")

    _patch("spotwarp.persistence.runlog.lease", "wait_for_turn", lambda _: hurry)


PROTECTIONS: Final[dict[str, Callable[[], None]]] = {
    "fence": fence,
    "torn-check": torn_check,
    "read-back": read_back,
    "set-aside": set_aside,
    "claim-wait": claim_wait,
    "nothing": lambda: None,
}


# ---- misfortunes ---------------------------------------------------------------------------------------------------


def lost_pack() -> Any:
    """The store acknowledges the first pack that is put after a notice, and does not keep it."""
    from spotwarp.testing.stores import Fault

    notice = Path.cwd() / ".spotwarp" / "notice.json"
    return Fault("put", key="/packs/", when=lambda _: notice.exists(), drop=True)


def slow_store() -> Any:
    """The first pack that is put after a notice takes its time."""
    from spotwarp.testing.stores import Fault

    notice = Path.cwd() / ".spotwarp" / "notice.json"
    return Fault("put", key="/packs/", when=lambda _: notice.exists(), hook=lambda: time.sleep(SLOW_S))


SLOW_S: Final = 6.0
"""Longer than a successor needs to start, shorter than what a notice leaves for the final sync."""

FAULTS: Final[dict[str, Callable[[], Any]]] = {"lost-pack": lost_pack, "slow-store": slow_store}


def afflict(fault: str) -> None:
    """Let every store that this process opens suffer from `fault`."""
    from spotwarp.testing.stores import FaultyStore

    trouble = FAULTS[fault]()

    def unlucky(connect: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: FaultyStore(connect(*arguments, **options), trouble)

    _patch("spotwarp.cli.context", "connect", unlucky)


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit code is SpotWarp's."""
    split = list(arguments).index("--")
    own, line = list(arguments[:split]), list(arguments[split + 1 :])
    PROTECTIONS[own[0]]()
    if "--fault" in own:
        afflict(own[own.index("--fault") + 1])
    from spotwarp.cli.app import main as cli

    return cli(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
