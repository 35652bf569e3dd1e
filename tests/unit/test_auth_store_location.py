"""The setting that names auth's store: a path, or a URL whose password is never shown."""

import pytest

from penstock.auth.config import AuthConfig
from penstock.chassis.config import ConfigError, describe, load
from penstock.chassis.database.location import MEMORY, parse_location

PASSWORD = "hunter2-secret"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (MEMORY, MEMORY),
        ("auth.sqlite", "auth.sqlite"),
        ("/data/auth.sqlite", "/data/auth.sqlite"),
        ("sqlite:///data/auth.sqlite", "/data/auth.sqlite"),
        ("sqlite:///data/a%20b.sqlite", "/data/a b.sqlite"),
    ],
)
def test_a_path_or_a_sqlite_url_names_a_file(text, path):
    location = parse_location(text)
    assert (location.path, str(location), location.is_postgres) == (path, path, False)
    assert location.is_file == (path != MEMORY)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://auth:{PASSWORD}@db:5433/usage", "postgresql://auth@db:5433/usage"),
        (
            f"postgres://auth:{PASSWORD}@a,b:5433/usage?sslmode=require",
            "postgres://auth@a,b:5433/usage?sslmode=require",
        ),
        (f"postgresql://auth@db/usage?password={PASSWORD}", "postgresql://auth@db/usage"),
        (f"postgresql://auth@db/usage?sslpassword={PASSWORD}", "postgresql://auth@db/usage"),
        ("postgresql://auth@/usage?host=/run/postgresql", "postgresql://auth@/usage?host=/run/postgresql"),
        ("postgresql://db/usage", "postgresql://db/usage"),
    ],
)
def test_a_url_of_postgresql_is_shown_without_its_password(url, shown):
    location = parse_location(url)
    assert (location.url, str(location), location.is_file) == (url, shown, False)
    assert PASSWORD not in repr(location)
    config = AuthConfig(store=url)
    assert PASSWORD not in repr(config)
    assert f"PENSTOCK_AUTH_STORE={shown}" in describe(config, "auth").splitlines()
    assert config.audit_log_path == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must not be empty"),
        ("mysql://db/usage", "sqlite:///absolute/path or postgresql"),
        ("sqlite://data/auth.sqlite", "absolute path"),
        ("sqlite:///", "absolute path"),
        (f"postgresql://auth:{PASSWORD}%@db/usage", "no valid URL of PostgreSQL"),
        (f"postgresql://auth:{PASSWORD}@db/usage?nonsense=1", "no valid URL of PostgreSQL"),
    ],
)
def test_a_store_that_cannot_be_named_prevents_the_start_and_shows_no_password(text, expected):
    with pytest.raises(ConfigError, match=expected) as failure:
        load(AuthConfig, "auth", {"PENSTOCK_AUTH_STORE": text})
    assert str(failure.value).startswith("PENSTOCK_AUTH_STORE ")
    assert PASSWORD not in str(failure.value)


def test_files_beside_a_sqlite_url_have_the_name_of_its_path():
    assert AuthConfig(store="sqlite:///data/auth.sqlite").audit_log_path == "/data/auth.sqlite.audit.jsonl"
