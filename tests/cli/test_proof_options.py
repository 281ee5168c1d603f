"""Results of proven audits as files: none of an earlier call is left by one that fails."""

import pytest

from skuq.cli._files import InputError
from skuq.cli._proof_options import VerificationFailed, errors_in_one_line
from skuq.zk import VerificationError


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("an unknown label"), InputError),
        (InputError("an unknown label"), InputError),
        (OSError("/proc/nope"), InputError),
        (KeyError("lost"), KeyError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_the_result_of_an_earlier_call_is_removed(tmp_path, error, raised):
    path = tmp_path / "verdict.json"
    path.write_text('{"passed":true}')
    with pytest.raises(raised), errors_in_one_line(path):
        raise error
    assert not path.exists()


def test_the_reason_of_a_failed_verification_replaces_it(tmp_path):
    path = tmp_path / "verdict.json"
    path.write_text('{"passed":true}')
    with pytest.raises(VerificationFailed), errors_in_one_line(path):
        raise VerificationError("The file was changed.")
    assert path.read_text() == '{"verification_error":"The file was changed."}\n'
