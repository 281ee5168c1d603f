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

from skuq.zk import VerificationError, VerifiedAudit, check, check_certificate, revoke
from skuq.zk import _signatures as signatures
from skuq.zk._certificate import certify, checked_certificate
from skuq.zk._files import read_json, write_json

COMMITTED = SimpleNamespace(digest="c0" * 32)
START = datetime.now(UTC)
STATEMENT = {
    "commitment_digest": COMMITTED.digest,
    "reference_digest": "4e" * 32,
    "alpha": 0.05,
    "n_bins": 10,
    "confidence_level": None,
    "regions": None,
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

    def withdraw(*certificates, name="revoked.json", **settings):
        return revoke(certificates, tmp_path / name, key=tmp_path / "auditor.pem", **settings)

    public = tmp_path / "auditor.pub"
    return SimpleNamespace(sign=sign, revoke=withdraw, public=public, key=key)


def checked(path, auditor, *, committed=COMMITTED, revoked=None, test=False, supplied=False):
    allowed = {"supplied": supplied, "test": test}
    return checked_certificate(path, committed, auditor.public, revoked, allowed)


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
    with pytest.raises(VerificationError, match="not made with this auditor's key"):
        checked(path, auditor)


@pytest.mark.parametrize("signature", ["", "AAAA", "no base64", "A" * 86 + "=="])
def test_another_signature_is_refused(auditor, signature):
    path = auditor.sign()
    write_json(path, {**read_json(path), "signature": signature})
    with pytest.raises(VerificationError, match="not made with this auditor's key"):
        checked(path, auditor)


def test_a_certificate_of_another_auditor_is_refused(auditor):
    path = auditor.sign()
    auditor.public.write_bytes(public_pem(ed25519.Ed25519PrivateKey.generate()))
    with pytest.raises(VerificationError, match="not made with this auditor's key"):
        checked(path, auditor)


def test_what_is_signed_must_be_a_certificate(auditor):
    """The same key may have signed other things."""
    path = auditor.sign()
    record = read_json(path)["certificate"]
    for other in ({**record, "kind": "letter"}, {**record, "format": 3}, {**record, "alpha": "1"}):
        text = auditor.key.sign(signatures.signed_text("certificate", other))
        write_json(path, {"certificate": other, "signature": base64.b64encode(text).decode()})
        with pytest.raises(VerificationError, match=r"not a certificate|not of the right type"):
            checked(path, auditor)


def test_only_a_passed_audit_of_this_commitment_counts(auditor):
    path = auditor.sign("failed.json", audit(passed=False))
    with pytest.raises(VerificationError, match="audit failed"):
        checked(path, auditor)
    other = SimpleNamespace(digest="c1" * 32)
    with pytest.raises(VerificationError, match="for a different commitment"):
        checked(auditor.sign(), auditor, committed=other)


def test_a_certificate_of_a_test_counts_in_tests_only(auditor):
    path = auditor.sign(given=audit(trust="test"))
    with pytest.raises(VerificationError, match="used a test reference string"):
        checked(path, auditor)
    assert checked(path, auditor, test=True).passed


def test_a_certificate_under_a_string_of_the_auditors_counts_if_the_reader_says_so(auditor):
    """Otherwise the provider's own string, handed to the auditor, would pass for a trusted one."""
    path = auditor.sign(given=audit(trust="supplied"))
    for test in (False, True):
        with pytest.raises(VerificationError, match=r"NOT the public ceremony's.*allow_supplied"):
            checked(path, auditor, test=test)
    assert checked(path, auditor, supplied=True).passed
    with pytest.raises(VerificationError, match="used a test reference string"):
        checked(auditor.sign("test.json", audit(trust="test")), auditor, supplied=True)
    with pytest.raises(VerificationError, match="an unknown type"):
        checked(auditor.sign("own.json", audit(trust="own")), auditor, supplied=True, test=True)


@pytest.mark.parametrize(
    ("days", "message"), [(-1, "not valid yet"), (29.9, None), (30, "expired on")]
)
def test_a_certificate_is_valid_for_its_time(auditor, monkeypatch, days, message):
    path = auditor.sign(valid_days=30)
    now = datetime.now(UTC) + timedelta(days=days)
    monkeypatch.setattr(signatures, "now", lambda: now)
    if message is None:
        assert checked(path, auditor).passed
        return
    with pytest.raises(VerificationError, match=message):
        checked(path, auditor)


def at(monkeypatch, days):
    """Set the clock."""
    now = START + timedelta(days=days)
    monkeypatch.setattr(signatures, "now", lambda: now)


def test_a_revoked_certificate_is_refused(auditor):
    path, other = auditor.sign(), auditor.sign("other.json", valid_days=7)
    listed = auditor.revoke(other)
    assert checked(path, auditor, revoked=listed).passed
    with pytest.raises(VerificationError, match="was revoked"):
        checked(other, auditor, revoked=listed)
    auditor.revoke("00" * 32, previous=listed, name="newest.json")
    newest = listed.with_name("newest.json")
    with pytest.raises(VerificationError, match="was revoked"):  # a list only grows
        checked(other, auditor, revoked=newest)
    auditor.revoke(checked(path, auditor).digest, previous=newest, name="newest.json")
    with pytest.raises(VerificationError, match="was revoked"):
        checked(path, auditor, revoked=newest)
    named = read_json(newest)["revocations"]["revoked"]
    assert len(named) == 3
    assert named == sorted(named)


def resigned(auditor, path, name="revocations", **entries):
    """Change entries of a signed record, and sign it again with the auditor's key."""
    record = {**read_json(path)[name], **entries}
    signature = auditor.key.sign(signatures.signed_text(name, record))
    write_json(path, {name: record, "signature": base64.b64encode(signature).decode()})


@pytest.mark.parametrize("place", ["two\nlines", "x" * 201])
def test_a_place_of_revoked_ones_that_fills_a_report_is_refused(auditor, place):
    path = auditor.sign()
    resigned(auditor, path, "certificate", revocations=place)
    with pytest.raises(VerificationError, match="must be one line of at most 200 characters"):
        checked(path, auditor)


def changed_later(auditor, path):
    record = read_json(path)
    record["revocations"]["expires"] = "2999-01-01T00:00:00Z"
    write_json(path, record)


def signed_by_another(auditor, path):
    key = ed25519.Ed25519PrivateKey.generate()
    resigned(SimpleNamespace(key=key), path)


def certificate_as_a_list(auditor, path):
    record = read_json(path.with_name("certificate.json"))
    write_json(path, {"revocations": record["certificate"], "signature": record["signature"]})


LISTS = {
    "an empty file": ("damaged", lambda a, p: p.write_bytes(b"")),
    "digests without a signature": (
        "damaged",
        lambda a, p: p.write_text("0" * 64, encoding="utf-8"),
    ),
    "the page of an error": ("damaged", lambda a, p: p.write_text("<html>", encoding="utf-8")),
    "no list": ("lacks the entry", lambda a, p: p.write_text("{}", encoding="utf-8")),
    "another date": ("not made with this auditor's key", changed_later),
    "another auditor": ("not made with this auditor's key", signed_by_another),
    "a certificate": ("not made with this auditor's key", certificate_as_a_list),
    "another kind": (
        "is not a list of revoked certificates",
        lambda a, p: resigned(a, p, kind="skuq audit certificate"),
    ),
    "an older format": (
        "is not a list of revoked certificates",
        lambda a, p: resigned(a, p, format=1),
    ),
    "one more entry": ("unknown entry 'more'", lambda a, p: resigned(a, p, more=1)),
    "an entry beside the record": (
        "unknown entry 'more'",
        lambda a, p: write_json(p, {**read_json(p), "more": 1}),
    ),
    "no list of digests": ("not of the right type", lambda a, p: resigned(a, p, revoked={})),
    "a number": ("entries that are not digests", lambda a, p: resigned(a, p, revoked=[7])),
    "capital letters": (
        "entries that are not digests",
        lambda a, p: resigned(a, p, revoked=["AB" * 32]),
    ),
    "a line more": (
        "entries that are not digests",
        lambda a, p: resigned(a, p, revoked=["ab" * 32 + "\n"]),
    ),
    "one digest twice": (
        "once, in ascending order",
        lambda a, p: resigned(a, p, revoked=2 * ["ab" * 32]),
    ),
    "no date": ("not a time", lambda a, p: resigned(a, p, expires="never")),
}


@pytest.mark.parametrize("attack", LISTS)
def test_a_list_that_is_not_the_auditors_is_refused(auditor, attack):
    """With any of them, a revoked certificate would count as one that was compared."""
    path, listed = auditor.sign(), auditor.revoke()
    assert checked(path, auditor, revoked=listed).passed
    message, change = LISTS[attack]
    change(auditor, listed)
    with pytest.raises(VerificationError, match=message):
        checked(path, auditor, revoked=listed)


@pytest.mark.parametrize(
    ("listed", "now", "message"),
    [
        (0, 29.9, None),
        (0, 30, "list of revoked certificates expired on"),
        (1, 0.5, "list of revoked certificates is not valid yet"),
        (-1, 1, "older than the certificate"),
    ],
)
def test_a_list_of_another_time_is_refused(auditor, monkeypatch, listed, now, message):
    at(monkeypatch, 0)
    path = auditor.sign()
    at(monkeypatch, listed)
    revoked = auditor.revoke(valid_days=30)
    at(monkeypatch, now)
    if message is None:
        assert checked(path, auditor, revoked=revoked).passed
        return
    with pytest.raises(VerificationError, match=message):
        checked(path, auditor, revoked=revoked)


def test_a_list_is_continued_and_never_begun_anew(auditor, monkeypatch):
    path = auditor.sign()
    listed = auditor.revoke(path)
    before = listed.read_bytes()
    with pytest.raises(FileExistsError, match="to add to this list"):
        auditor.revoke()
    other = auditor.revoke(name="other.json")
    with pytest.raises(FileExistsError, match="to add to this list"):
        auditor.revoke(previous=other)
    assert listed.read_bytes() == before
    at(monkeypatch, 100)  # the previous list may have expired
    auditor.revoke(previous=listed)
    assert read_json(listed)["revocations"]["revoked"] == [checked(path, auditor).digest]


def test_what_cannot_be_revoked_is_an_error(auditor, monkeypatch, tmp_path):
    path = auditor.sign()
    resigned(SimpleNamespace(key=ed25519.Ed25519PrivateKey.generate()), path, "certificate")
    for certificates, settings, message in (
        ([path], {}, "signature of the certificate"),
        (["ab" * 31], {}, "is missing"),
        ([], {"valid_days": 0}, "`valid_days` must be between 1"),
        ([], {"previous": path}, "lacks the entry 'revocations'"),
    ):
        with pytest.raises(ValueError, match=message):
            auditor.revoke(*certificates, **settings)
    with pytest.raises(TypeError, match="must be a list of paths"):
        revoke("ab" * 32, tmp_path / "revoked.json", key=tmp_path / "auditor.pem")
    later = auditor.revoke(name="later.json")
    at(monkeypatch, -1)
    with pytest.raises(VerificationError, match="not valid yet"):
        auditor.revoke(previous=later)
    assert not (tmp_path / "revoked.json").exists()


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
        (pem(rsa.generate_private_key(65537, 2048)), "got a different type"),
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
    with pytest.raises(VerificationError, match="audit failed"):
        check(exchange.attestation, exchange.public, **given, **{**demanded, "certificate": failed})
    with pytest.raises(ValueError, match="Pass both `certificate`"):
        check(exchange.attestation, exchange.public, **given, certificate=path)
