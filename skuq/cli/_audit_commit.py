"""``skuq audit commit``: the provider commits to a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq.cli._files import READABLE, InputError
from skuq.cli._main import one_line, say
from skuq.cli._proof_files import check_names, load_model, read_features
from skuq.cli._proof_options import (
    NEW_FOLDER,
    SHARE,
    drop_option,
    errors_in_one_line,
    quiet_option,
    require_zk,
)

if TYPE_CHECKING:
    from skuq.zk import Commitment


@click.command()
@click.option(
    "--model",
    type=READABLE,
    required=True,
    help="Your own joblib or pickle file of a fitted classifier. Loading such a file runs code: "
    "never take one from others.",
)
@click.option(
    "--data", type=READABLE, required=True, help="CSV file: calibration data, features alone."
)
@click.option("--out", type=NEW_FOLDER, required=True, help="Folder to create.")
@drop_option
@click.option(
    "--tolerance",
    type=SHARE,
    default=0.005,
    show_default=True,
    help="Largest difference between a proven confidence and the model's, on these data.",
)
@click.option(
    "--srs",
    type=READABLE,
    help="Structured reference string of the public ceremony; one of another size is refused with "
    "the name of the file that is needed.  [default: generated here, which is for tests only]",
)
@click.option(
    "--bins",
    "n_bins",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Largest number of confidence bins of an audit.",
)
@click.option(
    "--proofs",
    "n_proofs",
    type=click.IntRange(1),
    default=96,
    show_default=True,
    help="Number of proofs of audits that may be made.",
)
@click.option(
    "--attestations",
    "n_attestations",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Number of predictions that may be proven to clients.",
)
@click.option(
    "--verdict-samples",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of reference samples that can be audited at level 'verdict'.",
)
@click.option(
    "--max-memory",
    type=click.FloatRange(0, min_open=True),
    default=8.0,
    show_default=True,
    help="Memory for keys and proofs, in GiB.",
)
@quiet_option
def commit(
    model: Path, data: Path, out: Path, drop: tuple[str, ...], quiet: bool, **settings: Any
) -> None:
    """Commit to a model without revealing it (provider).

    Writes two folders: OUT/public is for everybody, OUT/private holds the weights and must stay
    where it is.
    """
    require_zk()
    table = read_features(data, drop)
    estimator = load_model(model)
    check_names(data, list(table.columns), estimator)
    with errors_in_one_line():
        from skuq import zk

        try:
            made = zk.commit(estimator, table, out, **settings, verbose=int(not quiet))
        except TypeError as error:  # a layer that a circuit does not support
            raise InputError(one_line(error)) from error
    if not quiet:
        _show(made, settings["srs"] is not None)


def _show(made: Commitment, given: bool) -> None:
    from skuq.zk._reference_string import CEREMONY, needed_string

    agreed = made.record["agreement"]
    say(f"Commitment point:   {made.point}")
    say(f"Commitment digest:  {made.digest}")
    say(f"For everybody:      {made.folder}")
    say(f"For nobody else:    {made.folder.parent / 'private'}")
    say(f"Proven confidences are within {agreed['maximum']:.4f} of the model's on these data.")
    log_rows = made.shape.log_rows
    if made.record["reference_string"]["sha256"] == CEREMONY[log_rows]:
        say("Reference string: that of the public ceremony.")
    elif given:
        say("Reference string: the given file; whoever verifies needs an own copy of it.")
    else:
        say("Reference string: TEST ONLY. Nobody can rely on these proofs. For others, commit with")
        say(f"--srs {needed_string(log_rows)}.")
