"""Which variables and files decide where a bucket is and whose key is used."""

from __future__ import annotations

import json
import os
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spotwarp.errors import UsageError
from spotwarp.persistence.store.aws import Credentials, credentials_from, endpoint_for
from spotwarp.persistence.store.keys import LOOK_S, Keys
from spotwarp.testing.clocks import VirtualClock


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    return tmp_path


def write(home: Path, *, config: str = "", credentials: str = "") -> dict[str, str]:
    (home / ".aws/config").write_text(config)
    (home / ".aws/credentials").write_text(credentials)
    return {"HOME": str(home)}


def test_amazon_is_the_default_and_the_bucket_is_in_the_host(home: Path) -> None:
    endpoint = endpoint_for("bkt", {"HOME": str(home), "AWS_REGION": "eu-west-1"})
    assert (endpoint.url, endpoint.region) == ("https://bkt.s3.eu-west-1.amazonaws.com", "eu-west-1")
    assert endpoint.virtual_hosted
    assert not endpoint.allow_http


def test_a_bucket_with_dots_goes_into_the_path(home: Path) -> None:
    endpoint = endpoint_for("my.bkt", {"HOME": str(home)})
    assert endpoint.url == "https://s3.us-east-1.amazonaws.com"
    assert not endpoint.virtual_hosted


def test_china_has_another_name(home: Path) -> None:
    assert endpoint_for("bkt", {"HOME": str(home), "AWS_REGION": "cn-north-1"}).url.endswith(".amazonaws.com.cn")


def test_A25_variables_win_over_the_profile_and_the_specific_over_the_general(home: Path) -> None:
    env = write(home, config="[default]\nregion = eu-north-1\nendpoint_url = https://profile.example/\n")
    assert endpoint_for("bkt", env).url == "https://profile.example"
    assert endpoint_for("bkt", env).region == "eu-north-1"
    env |= {"AWS_DEFAULT_REGION": "eu-west-3", "AWS_ENDPOINT_URL": "https://general.example"}
    assert endpoint_for("bkt", env).url == "https://general.example"
    assert endpoint_for("bkt", env).region == "eu-west-3"
    env |= {"AWS_REGION": "eu-west-2", "AWS_ENDPOINT_URL_S3": "https://specific.example:9000/base/"}
    endpoint = endpoint_for("bkt", env)
    assert (endpoint.url, endpoint.region) == ("https://specific.example:9000/base", "eu-west-2")
    assert not endpoint.virtual_hosted, "a custom endpoint is path style unless told otherwise"
    env |= {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
    assert endpoint_for("bkt", env).url == "https://bkt.s3.eu-west-2.amazonaws.com"


def test_the_profiles_nested_s3_settings(home: Path) -> None:
    env = write(
        home,
        config="[profile r2]\nregion = auto\ns3 =\n  endpoint_url = https://r2.example\n  addressing_style = virtual\n",
    )
    endpoint = endpoint_for("bkt", {**env, "AWS_PROFILE": "r2"})
    assert endpoint.url == "https://bkt.r2.example"
    assert endpoint.virtual_hosted


def test_a_services_section(home: Path) -> None:
    env = write(
        home, config="[default]\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = https://svc.example\n"
    )
    assert endpoint_for("bkt", env).url == "https://svc.example"


@pytest.mark.parametrize("host", ["127.0.0.1:9000", "localhost:9000", "[::1]:9000", "s3.localhost"])
def test_plain_http_is_for_this_machine(home: Path, host: str) -> None:
    assert endpoint_for("bkt", {"HOME": str(home), "AWS_ENDPOINT_URL": f"http://{host}"}).allow_http


def test_plain_http_elsewhere_takes_a_word(home: Path) -> None:
    env = {"HOME": str(home), "AWS_ENDPOINT_URL": "http://10.0.0.7:9000"}
    with pytest.raises(UsageError) as caught:
        endpoint_for("bkt", env)
    assert "AWS_ALLOW_HTTP" in (caught.value.hint or "")
    assert endpoint_for("bkt", {**env, "AWS_ALLOW_HTTP": "true"}).allow_http


@pytest.mark.parametrize(
    "url", ["example.org", "ftp://example.org", "https://", "https://k:s3cret@example.org", "https://e?x"]
)
def test_what_is_no_endpoint_is_refused_without_repeating_it(home: Path, url: str) -> None:
    with pytest.raises(UsageError) as caught:
        endpoint_for("bkt", {"HOME": str(home), "AWS_ENDPOINT_URL": url})
    assert "s3cret" not in str(caught.value)


def test_keys_come_from_variables_then_the_profile(home: Path) -> None:
    env = write(
        home, credentials="[default]\naws_access_key_id = F\naws_secret_access_key = f\naws_session_token = t\n"
    )
    assert credentials_from(env) == Credentials("F", "f", "t", renewable=True)
    env |= {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "e"}
    assert credentials_from(env) == Credentials("E", "e", None)
    assert credentials_from({**env, "AWS_SESSION_TOKEN": "tok"}) == Credentials("E", "e", "tok")
    assert credentials_from({"HOME": str(home / "nobody")}) is None


def test_files_can_be_elsewhere(home: Path) -> None:
    (home / "c").write_text("[ci]\naws_access_key_id = A\naws_secret_access_key = B\n")
    env = {"HOME": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": str(home / "c"), "AWS_PROFILE": "ci"}
    assert credentials_from(env) == Credentials("A", "B", None, renewable=True)


def test_a_secret_is_not_in_the_repr() -> None:
    assert "hunter2" not in repr(Credentials("A", "hunter2", "hunter2-token"))


@pytest.mark.parametrize(
    ("config", "profile", "word"),
    [
        ("[default]\ncredential_process = /nonexistent/x\n", None, "cannot be started"),
        ("[default]\ncredential_process = 'unbalanced\n", None, "cannot be started"),
        ("[default]\ncredential_process = false\n", None, "exit code 1"),
        ("[default]\ncredential_process = echo hunter2\n", None, "no key"),
        ("[profile p]\nsso_session = s\n", "p", "sso_session"),
        ("[profile p]\nrole_arn = r\n", "p", "role_arn"),
        ("[default]\naws_access_key_id = A\n", None, "half"),
        ("[default]\n", "absent", "absent"),
        ("no section = 1\n", None, "config"),
    ],
)
def test_what_cannot_be_honoured_is_named(home: Path, config: str, profile: str | None, word: str) -> None:
    env = write(home, config=config)
    if profile:
        env["AWS_PROFILE"] = profile
    with pytest.raises(UsageError) as caught:
        credentials_from(env)
    assert word in f"{caught.value}"


def test_half_a_key_in_the_variables_is_refused(home: Path) -> None:
    with pytest.raises(UsageError):
        credentials_from({"HOME": str(home), "AWS_ACCESS_KEY_ID": "A"})


def test_a_damaged_file_is_named_and_not_quoted(home: Path) -> None:
    env = write(home, credentials="aws_secret_access_key = hunter2\n")
    with pytest.raises(UsageError) as caught:
        credentials_from(env)
    assert "hunter2" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


def printing(home: Path, **answer: object) -> dict[str, str]:
    """An environment whose profile gets its key from a program that prints `answer`."""
    (home / "answer.json").write_text(json.dumps(answer))
    return {
        **write(home, config=f"[default]\ncredential_process = cat '{home}/answer.json'\n"),
        "PATH": os.environ["PATH"],
    }


def test_a_key_from_a_program(home: Path) -> None:
    env = printing(
        home, Version=1, AccessKeyId="A", SecretAccessKey="S", SessionToken="T", Expiration="2026-05-04T12:00:00Z"
    )
    assert credentials_from(env) == Credentials("A", "S", "T", True, datetime(2026, 5, 4, 12, tzinfo=UTC))
    env = printing(home, Version=1, AccessKeyId="A", SecretAccessKey="S")
    assert credentials_from(env) == Credentials("A", "S", None, True, None)


@pytest.mark.parametrize(
    "answer",
    [
        {"Version": 2, "AccessKeyId": "A", "SecretAccessKey": "hunter2"},
        {"Version": 1, "AccessKeyId": "A"},
        {"Version": 1, "AccessKeyId": "A", "SecretAccessKey": ""},
        {"Version": 1, "AccessKeyId": "A", "SecretAccessKey": ["hunter2"]},
        {"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "hunter2", "Expiration": "soon"},
        {"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "hunter2", "SessionToken": 5},
    ],
)
def test_an_answer_that_is_no_key_is_refused_and_not_repeated(home: Path, answer: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="no key") as caught:
        credentials_from(printing(home, **answer))
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_program_that_does_not_answer_is_given_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotwarp.persistence.store.credential_process.LIMIT_S", 0.2)
    env = write(home, config="[default]\ncredential_process = sh -c 'echo hunter2; exec sleep 60'\n")
    with pytest.raises(UsageError, match="within") as caught:
        credentials_from({**env, "PATH": os.environ["PATH"]})
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


# --- renewal


def file_key(home: Path, name: str) -> dict[str, str]:
    return write(home, credentials=f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s\n")


def access(keys: Keys) -> str:
    key, _ = keys.current()
    assert key is not None
    return key.access_key


def test_a_refused_key_is_looked_for_again_and_once_for_all_that_were_refused(home: Path) -> None:
    clock = VirtualClock()
    keys = Keys(file_key(home, "OLD"), clock)
    began = clock.monotonic()
    clock.advance(10)
    assert not keys.renew(began), "there is nothing newer"
    assert access(keys) == "OLD"
    file_key(home, "NEW")
    clock.advance(10)
    assert keys.renew(began)
    assert access(keys) == "NEW"
    assert keys.renew(began), "one that was sent with the old key is sent again"
    clock.advance(10)
    assert not keys.renew(clock.monotonic())


def test_a_source_that_fails_leaves_the_old_key(home: Path) -> None:
    clock = VirtualClock()
    keys = Keys(file_key(home, "OLD"), clock)
    (home / ".aws/credentials").write_text("half a fi")
    clock.advance(1000)
    assert access(keys) == "OLD"
    assert not keys.renew(clock.monotonic())


def test_a_file_is_looked_at_now_and_then(home: Path) -> None:
    clock = VirtualClock()
    keys = Keys(file_key(home, "OLD"), clock)
    file_key(home, "NEW")
    clock.advance(LOOK_S / 2)
    assert access(keys) == "OLD"
    clock.advance(LOOK_S)
    assert access(keys) == "NEW"


def test_a_spent_variable_gives_way_to_the_file(home: Path) -> None:
    clock = VirtualClock()
    env = {**file_key(home, "NEW"), "AWS_ACCESS_KEY_ID": "OLD", "AWS_SECRET_ACCESS_KEY": "s"}
    keys = Keys(env, clock)
    assert access(keys) == "OLD"
    clock.advance(10)
    assert keys.renew(clock.monotonic())
    assert access(keys) == "NEW"
    clock.advance(LOOK_S * 2)
    assert access(keys) == "NEW", "the spent one does not come back"


@pytest.mark.parametrize(("life_s", "again_s"), [(10, 8), (100, 80), (400, 300), (86400, LOOK_S), (-5, 1)])
def test_a_key_with_an_end_is_renewed_before_it(home: Path, life_s: float, again_s: float) -> None:
    clock = VirtualClock()

    def answer(name: str) -> dict[str, str]:
        until = (clock.wall() + timedelta(seconds=life_s)).isoformat()
        return printing(home, Version=1, AccessKeyId=name, SecretAccessKey="s", Expiration=until)

    keys = Keys(answer("OLD"), clock)
    answer("NEW")
    clock.advance(again_s - 0.5)
    assert access(keys) == "OLD"
    clock.advance(1.0)
    assert access(keys) == "NEW"
