"""The codecs' numbers. They stand beside every blob and never change their meaning."""

from typing import Final

RAW: Final = 0
ZSTD: Final = 1
PLANES: Final = 2
DELTA: Final = 3
PATCH: Final = 4

PAGE: Final = 4096
"""Bytes of a page: what a patch is made of."""
SEED: Final = 16
"""Bytes of a seed of fingerprints."""
