"""Encryption at rest: what leaves this machine says nothing of names or content, and nothing can be put in its place.

    cipher   a repository's key at work: boxes for bytes, other names for runs
    secret   what the user keeps: a passphrase, or a key in a file or a variable
    slots    the repository's key, wrapped by secrets
    keyring  the slots in the store, changed one whole set after the other
    sealed   a store whose objects are closed before they are put, and opened after they were got

Only the primitives of `cryptography` are used, imported when an encrypted repository is met. Normative: docs/format.md.
"""
