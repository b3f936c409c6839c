"""hf-xet as a command: stores the files of a directory in its content-addressed store, and brings them back.

    python benchmarks/xet.py up   STORE SOURCE
    python benchmarks/xet.py down STORE TARGET
    python benchmarks/xet.py version

Without a network: its library takes a directory for a server. What it needs to know to bring a file back it leaves to
its caller; here that is a list beside the store.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    if sys.argv[1] == "version":
        print(version("hf-xet"))
        return
    verb, store, there = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    import hf_xet

    endpoint, listed = f"local://{store}", store / "files.json"
    if verb == "up":
        files = [path for path in sorted(there.rglob("*")) if path.is_file()]
        done = hf_xet.upload_files([str(path) for path in files], endpoint, None, None, None, "model")
        rows = [
            (str(path.relative_to(there)), found.hash, found.filesize) for path, found in zip(files, done, strict=True)
        ]
        listed.write_text(json.dumps(rows))
        return
    wanted = []
    for name, digest, size in json.loads(listed.read_text()):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        wanted.append(hf_xet.PyXetDownloadInfo(str(there / name), digest, size))
    hf_xet.download_files(wanted, endpoint, None, None, None)


if __name__ == "__main__":
    main()
