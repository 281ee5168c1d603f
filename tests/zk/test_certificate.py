"""Certificates: what is signed, and everything that makes one worthless."""

import base64
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("ezkl")
pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from skuq.zk import VerificationError, VerifiedAudit, check, check_certificate
from skuq.zk import _certificate as certificates
from skuq.zk._certificate import certify, checked_certificate
from skuq.zk._files import read_json, write_json

COMMITTED = SimpleNamespace(digest="c0" * 32)
STATEMENT = {
    "commitment_digest": COMMITTED.digest,
    "reference_digest": "4e" * 32,
    "alpha": 0.05,
    "n_bins": 10,
    "confidence_level": None,
    "n_samples": 420,
    "versions": {"skuq": "words of the provider"},
    "anything": "more words of the provider",
}


def audit(passed=True, trust="ceremony"):
    return VerifiedAudit(
        passed, True, "bins", STATEMENT, None, None, 3, [], trust, ["a", "b"], ["b"], 0.01
    )


def pem(key, password=None):
    hide = serialization.NoEncryption()
    if password:
        hide = serialization.BestAvailableEncryption(password)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, hide)


def public_pem(key):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


@pytest.fixture
def auditor(tmp_path):
    """Keys of an auditor, and a way to sign."""
    key = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "auditor.pem").write_bytes(pem(key))
    (tmp_path / "auditor.pub").write_bytes(public_pem(key))

    def sign(name="certificate.json", given=None, **settings):
        found = audit() if given is None else given
        return certify(found, tmp_path / name, key=tmp_path / "auditor.pem", **settings)

    return SimpleNamespace(sign=sign, public=tmp_path / "auditor.pub", key=key)


def checked(path, auditor, *, committed=COMMITTED, revoked=None, test=False):
    return checked_certificate(path, committed, auditor.public, revoked, test)


def test_a_certificate_ties_verdict_commitment_data_question_and_dates(auditor):
    found = checked(auditor.sign(revocations="https://auditor.example/revoked"), auditor)
    record = found.record
    assert found.passed
    for name in ("commitment_digest", "reference_digest", "alpha", "n_bins", "n_samples"):
        assert record[name] == STATEMENT[name]
    assert record["n_proven"] == record["n_samples"]
    assert record["tolerance"] == 0.01
    assert record["revocations"] == "https://auditor.example/revoked"
    issued, expires = (
        datetime.strptime(record[name], "%Y-%m-%dT%H:%M:%S%z") for name in ("issued", "expires")
    )
    assert expires - issued == timedelta(days=365)
    assert abs(issued - datetime.now(UTC)) < timedelta(minutes=5)
    assert "provider" not in json.dumps(record)


def test_a_certificate_of_a_spot_check_says_how_many_samples_were_proven(auditor):
    spot_check = audit()._replace(statement={**STATEMENT, "n_proven": 1})
    assert checked(auditor.sign(given=spot_check), auditor).record["n_proven"] == 1


CHANGES = {
    "commitment_digest": "c1" * 32,
    "reference_digest": "00" * 32,
    "alpha": 0.01,
    "passed": False,
    "expires": "2999-01-01T00:00:00Z",
    "more": 1,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_certificate_is_refused(auditor, name):
    path = auditor.sign()
    record = read_json(path)
    record["certificate"][name] = CHANGES[name]
    write_json(path, record)
    with pytest.raises(VerificationError, match="not one of this auditor"):
        checked(path, auditor)


@pytest.mark.parametrize("signature", ["", "AAAA", "no base64", "A" * 86 + "=="])
def test_another_signature_is_refused(auditor, signature):
    path = auditor.sign()
    write_json(path, {**read_json(path), "signature": signature})
    with pytest.raises(VerificationError, match="not one of this auditor"):
        checked(path, auditor)


def test_a_certificate_of_another_auditor_is_refused(auditor):
    path = auditor.sign()
    auditor.public.write_bytes(public_pem(ed25519.Ed25519PrivateKey.generate()))
    with pytest.raises(VerificationError, match="not one of this auditor"):
        checked(path, auditor)


def test_what_is_signed_must_be_a_certificate(auditor):
    """The same key may have signed other things."""
    path = auditor.sign()
    record = read_json(path)["certificate"]
    for other in ({**record, "kind": "letter"}, {**record, "format": 3}, {**record, "alpha": "1"}):
        text = auditor.key.sign(certificates.signed_text(other))
        write_json(path, {"certificate": other, "signature": base64.b64encode(text).decode()})
        with pytest.raises(VerificationError, match=r"not a certificate|not of the right type"):
            checked(path, auditor)


def test_only_a_passed_audit_of_this_commitment_counts(auditor):
    path = auditor.sign("failed.json", audit(passed=False))
    with pytest.raises(VerificationError, match="audit was failed"):
        checked(path, auditor)
    other = SimpleNamespace(digest="c1" * 32)
    with pytest.raises(VerificationError, match="about another commitment"):
        checked(auditor.sign(), auditor, committed=other)


def test_a_certificate_of_a_test_counts_in_tests_only(auditor):
    path = auditor.sign(given=audit(trust="test"))
    with pytest.raises(VerificationError, match="about a test"):
        checked(path, auditor)
    assert checked(path, auditor, test=True).passed


@pytest.mark.parametrize(
    ("days", "message"), [(-1, "not valid yet"), (29.9, None), (30, "expired on")]
)
def test_a_certificate_is_valid_for_its_time(auditor, monkeypatch, days, message):
    path = auditor.sign(valid_days=30)
    now = datetime.now(UTC) + timedelta(days=days)
    monkeypatch.setattr(certificates, "_now", lambda: now)
    if message is None:
        assert checked(path, auditor).passed
        return
    with pytest.raises(VerificationError, match=message):
        checked(path, auditor)


def test_a_revoked_certificate_is_refused(auditor, tmp_path):
    path, listed = auditor.sign(), tmp_path / "revoked.txt"
    listed.write_text(f"{'0' * 64}\n", encoding="utf-8")
    found = checked(path, auditor, revoked=listed)
    listed.write_text(f"{'0' * 64}\n{found.digest}\n", encoding="utf-8")
    with pytest.raises(VerificationError, match="was revoked"):
        checked(path, auditor, revoked=listed)
    listed.write_text("<html>404: not found</html>", encoding="utf-8")
    with pytest.raises(VerificationError, match="not a list of digests"):
        checked(path, auditor, revoked=listed)
    listed.write_text("", encoding="utf-8")
    assert checked(path, auditor, revoked=listed).passed


def test_a_certificate_is_never_replaced(auditor):
    before = auditor.sign().read_bytes()
    with pytest.raises(FileExistsError, match="never replaced"):
        auditor.sign(given=audit(passed=False))
    assert auditor.sign("other.json").parent.joinpath("certificate.json").read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"valid_days": 0}, "`valid_days` must be between 1"),
        ({"revocations": "two\nlines"}, "`revocations` must be one line"),
    ],
)
def test_impossible_arguments_are_errors(auditor, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        auditor.sign(**settings)
    assert not (tmp_path / "certificate.json").exists()


def test_other_keys_are_errors(auditor, tmp_path):
    key = tmp_path / "auditor.pem"
    for content, message in (
        (b"", "a private Ed25519 key as PEM"),
        (auditor.public.read_bytes(), "a private Ed25519 key as PEM"),
        (pem(auditor.key, b"secret"), "without a password"),
        (pem(rsa.generate_private_key(65537, 2048)), "not one of another kind"),
    ):
        key.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            auditor.sign()
    auditor.public.write_bytes(pem(auditor.key))
    with pytest.raises(ValueError, match="a public Ed25519 key"):
        checked(tmp_path / "none.json", auditor)


@pytest.mark.slow
def test_a_client_demands_a_certificate_of_the_commitment(exchange, auditor, tmp_path):
    given = {"x": exchange.X[0], "nonce": "1", "keys": exchange.keys, "allow_test_string": True}
    found = exchange.verify("bins")
    path = auditor.sign(given=found._replace(passed=True))
    demanded = {"certificate": path, "auditor": auditor.public}
    answer = check(exchange.attestation, exchange.public, **given, **demanded)
    assert answer.certificate["alpha"] == 0.2
    assert check(exchange.attestation, exchange.public, **given).certificate is None
    assert check_certificate(path, exchange.public, auditor.public, allow_test_string=True).passed
    failed = auditor.sign("failed.json", found._replace(passed=False))
    with pytest.raises(VerificationError, match="audit was failed"):
        check(exchange.attestation, exchange.public, **given, **{**demanded, "certificate": failed})
    with pytest.raises(ValueError, match="belong together"):
        check(exchange.attestation, exchange.public, **given, certificate=path)
