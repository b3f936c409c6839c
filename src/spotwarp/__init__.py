"""SpotWarp makes GPU training on spot machines survivable.

In a training script or a notebook: `spotwarp.sync()` stores the workspace now, `spotwarp.status()` says how the run
stands, `spotwarp.notice()` is None until the machine is about to go. Owns these names and the version. Must never
import anything by itself: `spotwarp --version`, every verb and every script pay for what stands here.
"""

__version__ = "0.1.0"
__all__ = ["Notice", "Snapshot", "Status", "__version__", "notice", "status", "sync"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spotwarp.api import Notice, Snapshot, Status, notice, status, sync


def __getattr__(name: str) -> object:
    if name in __all__:
        from spotwarp import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
