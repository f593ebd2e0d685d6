"""What of an address may be shown, and what tells one object from another."""

import pickle
import traceback

import pytest

from headrace.errors import DataError, HeadraceError, MissingDependency, Quoted, RemoteError, without_secrets
from headrace.errors.addresses import digest, identity, redacted, secrets_in, with_identity_digest, without_login
from headrace.sources import Address

SECRET = "s3cr3tValue"
SIGNED = [
    f"https://host/a.csv?token={SECRET}",
    f"https://host/a.csv?X-Amz-Algorithm=AWS4&X-Amz-Credential={SECRET}%2F2024&X-Amz-Expires=60&X-Amz-Signature={SECRET}",
    f"https://host/a.csv?X-Goog-Signature={SECRET}&X-Goog-Date=2024",
    f"https://host/a.csv?sv=2022-11-02&st=2024&se=2025&sr=b&sp=r&sig={SECRET}%3D",
    f"https://host/a.csv?Expires=1700000000&Signature={SECRET}&Key-Pair-Id=K1&Policy={SECRET}",
    f"https://host/a.csv?access_token={SECRET}#part",
    f"https://me:{SECRET}@host/a.csv",
    f"https://{SECRET}@host/a.csv",
    f"https://me:a'{SECRET}@host/a.csv",
]


@pytest.mark.parametrize("address", SIGNED)
def test_what_only_says_who_reads_is_neither_shown_nor_part_of_the_identity(address):
    for text in (address, f"Reading {address} failed.", repr([address, address]), f"url={address!r}, more"):
        assert SECRET not in redacted(text)
        assert SECRET not in with_identity_digest(text)
        assert "host/a.csv" in redacted(text)
        assert redacted(redacted(text)) == redacted(text)
    assert identity(address) == with_identity_digest(address) == "https://host/a.csv"
    assert identity(f"zip://b/c.csv::{address}") == "zip://b/c.csv::https://host/a.csv"
    assert redacted(f"simplecache::{address}").startswith("simplecache::https://")


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/train-?-of-[0-9].csv",
        "github://org:repo@main/a.csv",
        "abfs://container@account.dfs.core.windows.net/a.csv",
        "https://host:8080/a@b.csv",
        "http://[::1]:8080/a@b.csv",
        "memory://a b/c.csv",
        "data/a.csv",
    ],
)
def test_an_address_without_secrets_stays_as_it_is(address):
    assert redacted(address) == with_identity_digest(address) == identity(address) == address


def test_what_selects_the_object_is_part_of_its_identity_and_not_shown():
    one, other = f"https://host/get?id=3&token={SECRET}", "https://host/get?token=other&id=4"
    assert identity(one) == "https://host/get?id=3" != identity(other)
    assert redacted(one) == redacted(other) == "https://host/get?…"
    assert with_identity_digest(one) == f"https://host/get?…#{digest('id=3')[:12]}" != with_identity_digest(other)
    assert (
        with_identity_digest(with_identity_digest(one))
        == redacted(with_identity_digest(one))
        == with_identity_digest(one)
    )
    assert identity("s3://bucket/a?versionId=1") != identity("s3://bucket/a?versionId=2")
    assert redacted("s3://bucket/a?versionId=1") == "s3://bucket/a?…"
    assert identity("https://h/a?b=1&a=2") == identity("https://h/a?a=2&b=1")
    assert identity("https://h/a?st=3") == "https://h/a?st=3"  # without a `sig`, no part of a signature


def test_a_word_that_may_select_is_part_of_the_identity_if_asked_for():
    assert identity("https://h/a?key=b") == identity("https://h/a?key=c")
    assert identity("https://h/a?key=b", unsure=True) != identity("https://h/a?key=c", unsure=True)


@pytest.mark.parametrize(
    "text",
    [
        f"host=db user=me password={SECRET} dbname=x",
        f"DRIVER=x;UID=me;PWD={SECRET};",
        f"{{'key': 'k', 'secret': '{SECRET}'}}",
        f"postgresql://me:{SECRET}@db/x",
        f"postgresql://me:a/{SECRET}?@db/x",
        f"Authorization: Bearer {SECRET}",
        f"GET /a.csv?signature={SECRET} HTTP/1.1",
        f"https://host/my file.csv?token={SECRET} is damaged",
        f"aws_secret_access_key='{SECRET}'",
    ],
)
def test_passwords_are_not_shown(text):
    assert SECRET not in redacted(text)


def test_what_is_no_secret_stays():
    for text in ("SqlDataSource('a.db', 'SELECT …', key='id')", "pack({'tokens': 128})", "max_token=5", "a: b = c?d"):
        assert redacted(text) == text


def test_options_of_a_driver():
    options = {
        "key": "kkkkkkkk",
        "secret": SECRET,
        "endpoint_url": "http://x",
        "anon": False,
        "client_kwargs": {"token": SECRET * 2},
    }
    assert secrets_in(options) == [SECRET * 2, SECRET, "kkkkkkkk"]
    assert without_login(options) == {"client_kwargs": {}, "endpoint_url": "http://x"}
    assert repr(Address(SIGNED[0], secret=SECRET)) == "'https://host/a.csv?…'"


def test_an_error_and_its_causes_show_no_secret():
    for kind in (HeadraceError, DataError, RemoteError, MissingDependency):
        error = pickle.loads(pickle.dumps(kind(f"{SIGNED[0]} is bad.")))
        error.add_note(f"reading {SIGNED[1]}")
        assert SECRET not in "".join(traceback.format_exception(error)) + repr(error)
        assert "https://host/a.csv?… is bad." in str(error)
    try:
        try:
            raise OSError(f"GET {SIGNED[0]}")
        except OSError as e:
            raise ValueError("nothing to hide") from e
    except ValueError as e:
        told = without_secrets(e)
    assert isinstance(told, Quoted)
    shown = "".join(traceback.format_exception(told))
    assert SECRET not in shown
    assert "OSError: GET https://host/a.csv?…" in shown
    assert "ValueError: nothing to hide" in shown
    plain = ValueError("plain")
    assert without_secrets(plain) is plain
