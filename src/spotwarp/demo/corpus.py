"""The text the demo's model learns: Python's own language reference, as every interpreter carries it.

Owns the vocabulary (newline and printable ASCII, the same on every machine) and the encoding. Needs no download
and ships no text. Must never depend on anything but the interpreter, or a resumed run could see other data.
"""

from __future__ import annotations

VOCABULARY = "\n" + "".join(chr(code) for code in range(32, 127))
"""One token per character; a token is the index."""

SIZE = 120_000
"""Characters used; enough that a short training never sees a window twice."""


def tokens(size: int = SIZE) -> bytes:
    """The first `size` characters of the text, one byte per token, each below `len(VOCABULARY)`."""
    from pydoc_data.topics import topics  # 700 kB of source: only a trainer pays for it

    text = "\n\n".join(topics[name] for name in sorted(topics))[:size]
    index = {character: token for token, character in enumerate(VOCABULARY)}
    space = index[" "]
    return bytes(index.get(character, space) for character in text)
