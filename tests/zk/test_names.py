"""Names of classes and columns that could be mistaken for others, and classes without labels."""

import sys
import unicodedata

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.zk import VerificationError, commit, load_commitment, prove, reported_predictions
from skuq.zk import _names as rules
from skuq.zk._names import check_classes, check_columns, check_present, shown_classes
from tests.zk.exchange import made_once, quick_commitments
from tests.zk.tampering import Exchange, verified

WORDS = [
    *("größe", "café", "tiếng Việt", "Ångström", "русский", "й", "Ελληνικά", "ქართული", "հայերեն"),
    *("हिन्दी", "नमस्ते", "বাংলা", "தமிழ்", "ภาษาไทย", "မြန်မာ", "ខ្មែរ", "བོད་ཡིག", "አማርኛ"),
    *("العربية", "עברית", "日本語テスト", "カタカナー", "がぎ", "中文 123", "한국어"),
    *("\u03bcm", "R (k\u03a9)", "don't", "no/yes", "1.5", "👍", "a\u2013b"),
]


def code(c):
    return f"U\\+{ord(c):04X}"


def test_words_of_all_scripts_are_names(second):
    for word in WORDS:
        name = unicodedata.normalize("NFKC", word)
        assert check_classes([name, "!"]).tolist() == [name, "!"]
        second.check_names([name, "!"])
    # Their letters look different.
    for names in (("a", "\u03b1"), ("m", "\u03bc"), ("B", "\u03b2"), ("1", "2", "10")):
        assert check_columns(names, len(names)) == names
        second.check_names(names)


INVISIBLE = "\u3164\u034f\u115f\u17b4\ufe0f\U000e0100\u180b\uffa0\u2800\u200b\u00ad\u202e\n\u00a0"
MIXED, MARKED = ["n\u043e", "\u0430b", "\u03b1b"], ["a \u0338", "0\u0338", "cafe\u0301"]
HIDDEN = [*(f"0{c}" for c in INVISIBLE), *MIXED, *MARKED, "\ufb01n", "m\u00b2", " ", "x" * 201]
ALIKE = [("Yes", "yes"), ("x y", " x  y"), ("\u0391\u03b2", "\u03b1\u03b2")]
ALIKE += [("\u0420\u0415\u0410\u0421\u0415", "\u0420\u0435\u0430\u0441\u0435")]
ALIKE += [("Stra\u00dfe", "STRASSE")]
MISLEADING = [(["x", name], "columns need visible names", None) for name in HIDDEN]
for one, other in ALIKE:  # by case and spaces alone
    message = "differ by more than case and spaces", "looks like another"
    MISLEADING += [(names, *message) for names in ([one, other], ["z", other, one])]


@pytest.mark.parametrize(("names", "ours", "theirs"), MISLEADING)
def test_names_that_hide_something_or_look_alike_are_refused(second, names, ours, theirs):
    with pytest.raises(ValueError, match=ours):
        check_columns(names, len(names))
    with pytest.raises(second.Refused, match=theirs):
        second.check_names(names)


def test_both_verifiers_have_the_same_rule_for_every_character(second):
    def refuses(check, *arguments):
        try:
            check(*arguments)
        except (ValueError, second.Refused):
            return True
        return False

    for c in map(chr, range(0x20, sys.maxunicode + 1, 31)):
        if unicodedata.category(c) not in ("Cs", "Cn", "Co"):
            names = ["no", f"no{c}", f"\u0915{c}"]
            first = refuses(rules.check_texts, names, "classes")
            assert first == refuses(second.check_names, names), hex(ord(c))


def test_a_provider_cannot_commit_to_such_names(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(40, 2)), np.array(["no", "no\ufe0f"] * 20)
    table = pd.DataFrame(X, columns=["age", "age\u3164"])
    for data, labels, c in ((X, y, "\ufe0f"), (table, y == "no", "\u3164")):
        with pytest.raises(ValueError, match=code(c)):
            commit(LogisticRegression().fit(data, labels), data, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_class_without_labels_is_refused_unless_it_is_expected_to_be_absent():
    classes, some = np.array(["0", "O", "1"]), np.array([2, 0, 0])
    assert check_present(np.array([0, 1, 2]), classes, ()) == []
    assert check_present(some, classes, ["O"]) == ["O"]
    for codes, absent, reason in (
        (some, (), r"None of your 3 labels .* classes: 'O'"),
        (np.array([0]), ["O"], "classes: '1'"),
        (some, ["O", "1"], "without labels"),
        (some, ["o"], "distinct classes of the commitment"),
        (some, ["O", "O"], "distinct classes of the commitment"),
    ):
        with pytest.raises(ValueError, match=reason):
            check_present(codes, classes, absent)


# The attack: honest software on all sides. In one region the model calls half of the answers by
# the name of a class and half by that of its twin, and so is right at half the confidence.
TWIN = "0\u3164"


def draw(n):
    """Inputs (bit, region, evidence), and labels as people see them."""
    rng = np.random.default_rng(n)
    region, bit = rng.random(n) < 0.5, rng.random(n) < 0.43
    evidence = np.where(rng.random(n) < 0.5, -2.0, 2.0) + 0.3 * rng.normal(size=n)
    X = np.column_stack([bit, np.where(region, 2.0, -2.0), evidence]).astype(float)
    return X, np.where(region | (evidence < 0), "0", "1"), region


def twins_in(folder):
    X, shown, region = draw(1200)
    other = region & (np.random.default_rng(0).random(len(X)) < 0.43)
    model = LogisticRegression().fit(X, np.where(other, TWIN, shown))
    made = Exchange(folder, model, X, shown, slice(None))
    made.data = made.X_ref, made.y_ref = draw(26)[:2]
    made.question = {"tolerance": 0.3, "n_bins": 2, "confidence_level": 0.95}
    return made


def make_twins(folder):
    """A commitment to a model with a hidden twin, and an audit."""
    made = twins_in(folder)
    with quick_commitments() as patch:
        patch.setattr(rules, "check_texts", lambda *_: None)  # a provider may change the software
        commit(made.model, made.X, folder, n_bins=2, n_proofs=6, max_error=0.02)
        prove(made.public, *made.data, made.bins, **made.question)
        verified(made, "bins", absent_classes=[TWIN])


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    return twins_in(made_once(tmp_path_factory, "twins", make_twins, __file__))


def test_a_class_that_looks_like_another_passes_no_audit(twins, monkeypatch):
    for call in (lambda: load_commitment(twins.public), lambda: verified(twins, "bins")):
        with pytest.raises(VerificationError, match="classes need visible names"):
            call()
    # Whatever its name were: it is not among the labels.
    monkeypatch.setattr(rules, "check_texts", lambda *_: None)
    with pytest.raises(VerificationError, match="None of your 26 labels"):
        verified(twins, "bins")
    # What all of this prevents: a model that is always right passes with half the confidence.
    found = verified(twins, "bins", absent_classes=[TWIN])
    assert found.passed
    assert found.absent_classes == [TWIN]
    assert "no reference sample belongs to '0" in found.notes[0]
    shown = shown_classes(["0", TWIN])  # twins differ where they are shown
    assert shown.isprintable()
    assert "'0\\u3164'" in shown
    X, y, region = draw(2000)
    labels, confidence = reported_predictions(twins.public, X)
    assert (np.char.rstrip(labels, "\u3164") == y)[region].mean() > 0.99
    assert confidence[region].mean() < 0.65
