"""SpotWarp makes GPU training on spot machines survivable.

Owns the version and nothing else. Must never import anything: `spotwarp --version` and every other verb pay for
what stands here.
"""

__version__ = "0.1.0"
