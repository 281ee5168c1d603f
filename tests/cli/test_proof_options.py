"""Files of proof commands: labels as classes, and results that failed calls leave."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from skuq.cli._io import InputError
from skuq.cli._proofs import (
    VerificationFailed,
    classes_of,
    labels_of,
    proofs,
)
from skuq.zk import VerificationError


@pytest.mark.parametrize(
    ("column", "classes", "expected"),
    [
        ([0, 1], [0, 1], [0, 1]),
        ([0.0, 1.0], [0, 1], [0, 1]),
        (["0", "1"], [0, 1], [0, 1]),
        ([0, 1], ["0", "1"], ["0", "1"]),
        ([0, 1], [0.0, 1.0], [0.0, 1.0]),
        ([True, False], [False, True], [True, False]),
        ([1, 0], [False, True], [True, False]),
        (["a", "NA"], ["a", "NA"], ["a", "NA"]),
    ],
)
def test_labels_become_what_the_classes_are(column, classes, expected):
    found = labels_of("y", pd.Series(column), np.array(classes))
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("column", "classes", "got"),
    [
        ([0, 2], [0, 1], "got '2' in row 2"),
        ([0.0, 0.5], [0, 1], "got '0.5' in row 2"),
        ([True, False], [0, 1], "got 'True' in row 1"),
        (["0", "one"], [0, 1], "got 'one' in row 2"),
        ([1.0, 0.0], ["0", "1"], "got '1.0' in row 1"),
        ([0, 2], [False, True], "got '2' in row 2"),
        (["yes", "no"], [False, True], "got 'yes' in row 1"),
        (["a", None], ["a", "b"], "got nothing in row 2"),
        ([1e400, 1.0], [0, 1], "got 'inf' in row 1"),
    ],
)
def test_a_label_that_is_none_of_the_classes_is_named(column, classes, got):
    with pytest.raises(InputError, match=got):
        labels_of("y", pd.Series(column), np.array(classes))


@pytest.mark.parametrize(
    ("text", "classes", "expected"),
    [
        ("a, b", ["a", "b"], ["a", "b"]),
        ('"no, thanks", yes', ["no, thanks", "yes"], ["no, thanks", "yes"]),
        ("0,1", [0.0, 1.0], [0, 1]),
        ("True,False", [False, True], [True, False]),
        ("", ["a"], [""]),
    ],
)
def test_classes_are_given_as_a_row_of_a_csv_file(text, classes, expected):
    assert classes_of(text, SimpleNamespace(classes=np.array(classes))) == expected


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (ValueError("an unknown label"), InputError, "an unknown label"),
        (InputError("an unknown label"), InputError, "an unknown label"),
        (OSError("/proc/nope"), InputError, "/proc/nope"),
        (KeyError("lost"), KeyError, "lost"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
    ],
)
def test_the_result_of_an_earlier_call_is_removed(tmp_path, error, raised, message):
    path = tmp_path / "verdict.json"
    path.write_text('{"passed":true}', encoding="utf-8")
    with pytest.raises(raised, match=message), proofs(path):
        raise error
    assert not path.exists()


def test_the_reason_of_a_failed_verification_replaces_it(tmp_path):
    path = tmp_path / "verdict.json"
    path.write_text('{"passed":true}', encoding="utf-8")
    with pytest.raises(VerificationFailed, match="was changed"), proofs(path):
        raise VerificationError("The file was changed.")
    assert path.read_text(encoding="utf-8") == '{"verification_error":"The file was changed."}\n'
