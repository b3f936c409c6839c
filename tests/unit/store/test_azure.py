"""Which Azure account is used, with what, and where."""

from __future__ import annotations

import pytest

from spotwarp.errors import BucketMissing, StoreConflict, StoreDenied, StoreUnavailable, UsageError
from spotwarp.persistence.store import dialects
from spotwarp.persistence.store.azure import EMULATOR, EMULATOR_ACCOUNT, azure_access
from spotwarp.persistence.store.refusal import meaning

NAME = "AZURE_STORAGE_ACCOUNT_NAME"
KEY = "AZURE_STORAGE_ACCOUNT_KEY"
STRING = "AZURE_STORAGE_CONNECTION_STRING"
SECRET = "aHVudGVyMg=="


def test_an_account_and_its_key() -> None:
    access = azure_access({NAME: "acct", KEY: SECRET})
    assert (access.account, access.endpoint, access.key) == ("acct", "https://acct.blob.core.windows.net", SECRET)
    assert SECRET not in repr(access)


def test_the_urls_account_needs_no_variable_and_must_not_contradict_one() -> None:
    assert azure_access({}, "acct").endpoint == "https://acct.blob.core.windows.net"
    assert azure_access({NAME: "acct", KEY: SECRET}, "acct").key == SECRET
    with pytest.raises(UsageError, match="other"):
        azure_access({NAME: "other", KEY: SECRET}, "acct")


@pytest.mark.parametrize("name", [NAME, "AZURE_STORAGE_ACCOUNT"])
@pytest.mark.parametrize("key", [KEY, "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY"])
def test_other_tools_names_are_understood(name: str, key: str) -> None:
    assert azure_access({name: "acct", key: SECRET}).key == SECRET


@pytest.mark.parametrize("sas", ["sv=1&sig=x%3D", "?sv=1&sig=x%3D"])
def test_a_sas_token_stands_in_for_a_key(sas: str) -> None:
    access = azure_access({NAME: "acct", "AZURE_STORAGE_SAS_TOKEN": sas})
    assert (access.key, access.sas) == (None, "sv=1&sig=x%3D")
    assert "sig" not in repr(access)


def test_an_identity_needs_neither() -> None:
    access = azure_access({NAME: "acct"})
    assert (access.key, access.sas) == (None, None)


def test_a_connection_string_says_it_all_and_the_variables_win() -> None:
    string = f"DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={SECRET};EndpointSuffix=core.chinacloudapi.cn"
    access = azure_access({STRING: string})
    assert (access.account, access.endpoint, access.key) == ("acct", "https://acct.blob.core.chinacloudapi.cn", SECRET)
    access = azure_access({STRING: string, "AZURE_STORAGE_SAS_TOKEN": "sig=x"})
    assert (access.key, access.sas) == (None, "sig=x")
    access = azure_access({STRING: "BlobEndpoint=https://h.example.org/;AccountName=a;SharedAccessSignature=sig=y"})
    assert (access.endpoint, access.sas) == ("https://h.example.org", "sig=y")
    access = azure_access({STRING: "UseDevelopmentStorage=true"})
    assert (access.account, access.endpoint) == (EMULATOR_ACCOUNT, EMULATOR)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {KEY: SECRET},
        {NAME: "acct", KEY: "hunter2!"},
        {STRING: "hunter2"},
        {NAME: "acct", "AZURE_STORAGE_ENDPOINT": "http://azurite.example.org:10000/acct"},
        {NAME: "acct", "AZURE_STORAGE_ENDPOINT": "azurite:10000"},
    ],
)
def test_what_cannot_be_used_is_refused_and_not_repeated(env: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        azure_access(env)
    assert caught.value.hint
    assert "hunter2" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


def test_an_emulator_elsewhere_is_allowed_by_name() -> None:
    env = {NAME: "acct", "AZURE_STORAGE_ENDPOINT": "http://azurite:10000/acct/", "AZURE_ALLOW_HTTP": "true"}
    assert azure_access(env).endpoint == "http://azurite:10000/acct"


def said(text: str, verb: str = "get") -> Exception:
    return meaning(text, verb=verb, key="k", url="az://c", dialect=dialects.AZURE)


def test_answers_that_no_server_here_gives() -> None:
    text = "Server returned non-2xx status code: {} X: <Error><Code>{}</Code>{}</Error>"
    old = "<AuthenticationErrorDetail>Request date header too old: 'Sun'</AuthenticationErrorDetail>"
    error = said(text.format(403, "AuthenticationFailed", old))
    assert isinstance(error, StoreUnavailable)
    assert "clock" in str(error.hint)
    assert isinstance(said(text.format(409, "ContainerBeingDeleted", ""), "put_new"), BucketMissing)
    assert isinstance(said(text.format(409, "BlobImmutableDueToPolicy", ""), "put"), StoreDenied)
    assert isinstance(said(text.format(409, "LeaseIdMissing", ""), "put_new"), StoreConflict)
    token = "Error performing token request: Error performing POST https://h/t in 1ms - Server returned non-2xx status "
    assert isinstance(said(token + "code: 400 Bad Request: invalid_client hunter2"), StoreDenied)
    assert "hunter2" not in str(said(token + "code: 400 Bad Request: invalid_client hunter2"))
    assert isinstance(said(token + "code: 503 X"), StoreUnavailable)
