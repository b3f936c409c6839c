"""The object store: seven verbs (`api`), three kinds of place, and what makes them dependable."""

from spotwarp.persistence.store.api import Buffer, ObjectMeta, Store, checked_key

__all__ = ["Buffer", "ObjectMeta", "Store", "checked_key"]
