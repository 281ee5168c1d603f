"""``skuq audit regions``: the auditor chooses the regions of an audit with proofs."""

from __future__ import annotations

from pathlib import Path

import click

from skuq.cli._files import READABLE, WRITABLE, InputError, read_csv
from skuq.cli._printing import say
from skuq.cli._proof_options import (
    check_files,
    drop_option,
    errors_in_one_line,
    load_commitment_folder,
    numbers_of,
    published_commitment_option,
    read_reference,
    require_zk,
)


@click.command()
@published_commitment_option
@click.option(
    "--data",
    type=READABLE,
    required=True,
    help="CSV file: inputs, true labels, and the model's predictions. None of its rows may be in "
    "the reference data.",
)
@click.option("--label", required=True, help="Column with the true label.")
@click.option("--predicted", required=True, help="Column with the predicted label.")
@click.option("--confidence", required=True, help="Column with the confidence.")
@drop_option
@click.option(
    "--max-regions",
    type=click.IntRange(2, 64),
    default=8,
    show_default=True,
    help="Largest number of regions. The more regions, the fewer samples in each.",
)
@click.option(
    "--min-samples",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Smallest number of rows in a region.",
)
@click.option("--out", type=WRITABLE, required=True, help="JSON file to write.")
def regions(
    commitment: Path,
    data: Path,
    label: str,
    predicted: str,
    confidence: str,
    drop: tuple[str, ...],
    max_regions: int,
    min_samples: int,
    out: Path,
) -> None:
    """Choose regions that are audited in addition to all samples (auditor).

    Regions are the leaves of a small tree trained on the difference between
    correctness and confidence. Send the file to the provider, and pass it to
    'verify'. Audit on reference data that differ from the data used here.
    """
    require_zk()
    check_files([out], [data], [commitment])
    with errors_in_one_line():
        from skuq import zk

        committed = load_commitment_folder(commitment)
        X, true = read_reference(data, label, (predicted, confidence, *drop), committed)
        answered = read_reference(data, predicted, (label, confidence, *drop), committed)[1]
        stated = numbers_of(data, read_csv(data, needed=[confidence])[[confidence]])[confidence]
        if not stated.between(0, 1, inclusive="right").all():
            raise InputError(
                f"--confidence: {confidence!r} must contain probabilities above 0 and up to 1, got "
                f"{stated.min():g} to {stated.max():g}."
            )
        gap = [
            (answer == truth) - sure
            for answer, truth, sure in zip(answered, true, stated, strict=True)
        ]
        found = zk.choose_regions(X, gap, out, max_regions=max_regions, min_samples=min_samples)
    for rule in found.rules(committed.encoding.names):
        say(f"  {rule}")
    say(f"Regions: {out}")
