"""A snapshot's contents: everything a restore needs to know.

`rows` has the structures, `records` the entries in segments that are complete in themselves, `wire` the object in the
bucket. Entries are a table in the order of their paths, which stays coded in memory; files point into one list of
blobs. Paths are bytes, relative to the workspace. Fields are positional on the wire (arrays), so new ones are only ever
added at the end. Normative: docs/format.md.
"""

from spotwarp.persistence.manifest.records import Records, RecordsBuilder
from spotwarp.persistence.manifest.rows import (
    DIRECTORY,
    FILE,
    NO_BASE,
    SYMLINK,
    Blob,
    CheckpointFact,
    Entry,
    Extent,
    FileFact,
    Manifest,
    PackRef,
    Shared,
    Skipped,
    builder,
    is_damaged,
    is_model,
    tabled,
    without_packs,
)
from spotwarp.persistence.manifest.wire import MAX_HEAD, address, decode, encode, packs

__all__ = [
    "DIRECTORY",
    "FILE",
    "MAX_HEAD",
    "NO_BASE",
    "SYMLINK",
    "Blob",
    "CheckpointFact",
    "Entry",
    "Extent",
    "FileFact",
    "Manifest",
    "PackRef",
    "Records",
    "RecordsBuilder",
    "Shared",
    "Skipped",
    "address",
    "builder",
    "decode",
    "encode",
    "is_damaged",
    "is_model",
    "packs",
    "tabled",
    "without_packs",
]
