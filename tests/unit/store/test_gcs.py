"""Which Google account is used, and where; and how rewrites keep their distance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotwarp.errors import StoreDenied, UsageError
from spotwarp.persistence.store.gcs import ENDPOINT, GcsStore, google_access
from spotwarp.testing.clocks import VirtualClock
from spotwarp.testing.gcs import gcs_double

KEY = {"type": "service_account", "client_email": "a@b", "private_key": "hunter2", "private_key_id": "1"}


def written(path: Path, content: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_without_anything_it_is_the_machines_own_account(tmp_path: Path) -> None:
    access = google_access({"HOME": str(tmp_path)})
    assert (access.base_url, access.key, access.login, access.anonymous) == (ENDPOINT, None, None, False)


def test_a_named_key_wins_over_a_login_and_is_not_shown(tmp_path: Path) -> None:
    written(tmp_path / ".config/gcloud/application_default_credentials.json", {"type": "authorized_user"})
    env = {"HOME": str(tmp_path), "GOOGLE_APPLICATION_CREDENTIALS": written(tmp_path / "key.json", KEY)}
    access = google_access(env)
    assert access.key is not None
    assert access.login is None
    assert "hunter2" not in repr(access)


@pytest.mark.parametrize("place", [".config/gcloud", "elsewhere"])
def test_a_login_is_found(tmp_path: Path, place: str) -> None:
    path = tmp_path / place / "application_default_credentials.json"
    written(path, {"type": "authorized_user", "refresh_token": "hunter2"})
    env = {"HOME": str(tmp_path)} | ({"CLOUDSDK_CONFIG": str(path.parent)} if place == "elsewhere" else {})
    access = google_access(env)
    assert access.login == path
    assert "hunter2" not in repr(access)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "http://127.0.0.1:9", "http://localhost:9/"])
def test_an_emulator_needs_no_account_and_takes_no_login(tmp_path: Path, host: str) -> None:
    written(tmp_path / ".config/gcloud/application_default_credentials.json", {"type": "authorized_user"})
    access = google_access({"HOME": str(tmp_path), "STORAGE_EMULATOR_HOST": host})
    assert access.anonymous
    assert access.base_url == host.rstrip("/") if "://" in host else f"http://{host}"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "no file of Google credentials"),
        ("[]", "no file of Google credentials"),
        ({"private_key": "hunter2"}, "no file of Google credentials"),
        ({"type": "external_account", "secret": "hunter2"}, "external_account"),
        ({"type": "impersonated_service_account"}, "impersonated_service_account"),
    ],
)
def test_what_cannot_be_used_is_refused_and_not_repeated(tmp_path: Path, content: object, word: str) -> None:
    env = {"HOME": str(tmp_path), "GOOGLE_APPLICATION_CREDENTIALS": written(tmp_path / "c.json", content)}
    with pytest.raises(UsageError, match=word) as caught:
        google_access(env)
    assert caught.value.hint
    assert "hunter2" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-file"):
        google_access({"HOME": str(tmp_path), "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "no-such-file")})


def test_a_key_that_is_none_is_said_when_it_is_used(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "GOOGLE_APPLICATION_CREDENTIALS": written(tmp_path / "key.json", KEY)}
    store = GcsStore("b", "p", env=env, clock=VirtualClock())
    with pytest.raises(StoreDenied) as caught:
        store.get("a")
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize("host", ["http://storage.example.org", "ftp://127.0.0.1", "127.0.0.1:x:y@z"])
def test_an_address_that_is_none_or_shows_the_data_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError):
        google_access({"HOME": str(tmp_path), "STORAGE_EMULATOR_HOST": host})


def test_the_machines_own_account_is_asked_for_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gcs_double("bkt") as server:
        server.authenticated = True
        monkeypatch.setenv("GCE_METADATA_HOST", server.endpoint.removeprefix("http://"))
        monkeypatch.setattr("spotwarp.persistence.store.gcs.ENDPOINT", server.endpoint)
        store = GcsStore("bkt", "p", env={"HOME": str(tmp_path)}, clock=VirtualClock())
        store.put_new("a", b"1")
        assert store.get("a") == b"1"


def test_a_rewrite_waits_for_its_second_and_nothing_else_does() -> None:
    clock = VirtualClock()
    with gcs_double("bkt", clock=clock) as server:
        server.rewrite_gap_s = 1.0
        store = GcsStore("bkt", "p", env=server.env(), clock=clock)
        for n in range(3):
            store.put("beats/a", b"%d" % n)
            store.put(f"packs/{n}", b"")
        assert store.get("beats/a") == b"2"
        assert [seen.status for seen in server.seen if seen.verb == "PUT"] == [200] * 6
    assert 2.0 < clock.monotonic() < 2.3
