"""`penstock certs`: what it writes is what processes accept, and mistakes are reported."""

import json

import pytest
from click.testing import CliRunner

from penstock.chassis.config import ConfigError
from penstock.chassis.security.certificates import CertificatePaths, load_certificates
from penstock.cli.__main__ import cli


def run(*arguments):
    result = CliRunner().invoke(cli, ["certs", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_an_issued_certificate_is_accepted_by_a_process(tmp_path):
    run("ca", "--out", tmp_path / "ca", "--trust-domain", "prod.example")
    run("issue", "queue", "queue-0", "--ca", tmp_path / "ca", "--out", tmp_path / "q", "--dns", "q.example")
    files = [tmp_path / "q" / name for name in ("queue-0.pem", "queue-0.key", "ca.pem")]
    identity = load_certificates(CertificatePaths(*files)).identity
    assert identity.uri == "spiffe://prod.example/penstock/queue/queue-0"
    assert (files[1].stat().st_mode & 0o777, (tmp_path / "ca" / "ca.key").stat().st_mode & 0o777) == (0o600, 0o600)


def test_show_names_identity_and_validity(tmp_path):
    run("ca", "--out", tmp_path)
    run("issue", "edge", "edge-1", "--ca", tmp_path, "--out", tmp_path, "--days", "7", "--dns", "e.example")
    shown = json.loads(run("show", tmp_path / "edge-1.pem", "--json").stdout)
    assert shown["identity"] == "spiffe://penstock.local/penstock/edge/edge-1"
    assert shown["dns_names"] == ["edge.penstock.internal", "edge-1.edge.penstock.internal", "e.example"]
    assert 6.9 < shown["days_left"] <= 7.0


def test_an_authority_is_not_replaced_by_mistake(tmp_path):
    run("ca", "--out", tmp_path)
    with pytest.raises(ConfigError, match="exists"):
        run("ca", "--out", tmp_path)


@pytest.mark.parametrize(
    ("tier", "instance", "error"),
    [("queu", "q", "a tier is one of"), ("queue", "Q_1", "an instance is"), ("queue", "a.b", "an instance is")],
)
def test_a_wrong_name_is_refused(tmp_path, tier, instance, error):
    run("ca", "--out", tmp_path)
    with pytest.raises(ConfigError, match=error):
        run("issue", tier, instance, "--ca", tmp_path, "--out", tmp_path)


def test_a_folder_without_an_authority_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="penstock certs ca"):
        run("issue", "queue", "q", "--ca", tmp_path, "--out", tmp_path)
