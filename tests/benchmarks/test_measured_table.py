"""Recorded figures, and a paper's beside them, as the list-table of a documentation page."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the directive is part of the documentation")
sys.path.append(str(Path(__file__).parents[2] / "docs"))

from measured_table import _counts, _origin, names, published, table

RECORDS = [
    {"method": method, "dataset": dataset, "metric": "auroc", "value": value, "std": 0.004, "n": n}
    for method, dataset, value, n in (
        ("quam", "fashion", 0.98765, 15),
        ("quam", "omniglot", 0.5, 5),
        ("entropy", "fashion", 0.9, 15),
    )
]


def rows(records=RECORDS, **options):
    given = {
        "metrics": {"auroc": "auroc"},  # alone, so it needs no heading
        "columns": {"fashion": "Fashion", "omniglot": "Omniglot"},
        "rows": {"quam": "QUAM", "entropy": "entropy"},
    } | options
    found: list[list[str]] = []
    for line in list(table(records, given))[3:]:
        if line.startswith("   * - "):
            found.append([])
        found[-1].append(line[7:])
    return found


def test_rows_and_columns_hold_what_was_recorded_with_its_spread_and_a_dash_what_was_not():
    assert rows() == [
        ["method", "Fashion", "Omniglot"],
        ["QUAM", "0.988", "0.500"],
        ["entropy", "0.900", "\N{EN DASH}"],
    ]
    shown = {"columns": {"quam": "QUAM"}, "rows": {"omniglot": "Omniglot"}, "first": "images"}
    assert rows(turned=None, **shown) == [["images", "QUAM"], ["Omniglot", "0.500"]]
    assert rows(spread=None, scale=100.0, digits=1)[1:] == [
        ["QUAM", "98.8 ± 0.4", "50.0 ± 0.4"],
        ["entropy", "90.0 ± 0.4", "\N{EN DASH}"],
    ]
    one = {"records": [{**each, "n": 1} for each in RECORDS]}
    assert rows(spread=None, **one)[1] == ["QUAM", "0.988", "0.500"]  # one value has no spread


def test_the_number_of_values_is_that_of_the_figures_shown():
    options = {"metrics": {"auroc": "-"}, "rows": {"quam": "QUAM", "entropy": "entropy"}}
    both = options | {"columns": {"fashion": "Fashion", "omniglot": "Omniglot"}}
    one = options | {"columns": {"fashion": "Fashion"}, "of": "networks"}
    turned = one | {"rows": one["columns"], "columns": one["rows"], "turned": None}
    assert list(_counts(RECORDS, both | {"of": "networks"})) == ["n = 5 to 15 networks."]
    assert list(_counts(RECORDS, one)) == ["n = 15 networks."] == list(_counts(RECORDS, turned))
    assert [*_counts(RECORDS, both), *_counts([], one)] == []


def test_figures_of_a_paper_follow_ours_with_a_sign_where_their_intervals_do_not_overlap():
    paper = published("quam = .994 ± .001, -\nentropy = .986, .973")
    assert rows(paper=paper, scale=100.0, digits=1)[1:] == [
        ["QUAM", "98.8 (.994 ± .001)", "50.0"],
        ["entropy", "90.0 (.986)", "\N{EN DASH} (.973)"],
    ]
    paper = published("quam = 98.0 ± 0.2, 50.44\nentropy = 89.6, -")
    assert rows(paper=paper, spread=None, scale=100.0, digits=1)[1:] == [
        ["QUAM", "98.8 ± 0.4 (98.0 ± 0.2) >", "50.0 ± 0.4 (50.44) <"],
        ["entropy", "90.0 ± 0.4 (89.6) =", "\N{EN DASH}"],
    ]


def test_rows_of_which_nothing_is_recorded_and_figures_that_fit_none_are_refused():
    with pytest.raises(ValueError, match="laplace"):
        rows(rows={"quam": "QUAM", "laplace": "Laplace"})
    for text in ("quam = .994", "quam = .9, .9, .9", "laplace = .978, .963"):
        with pytest.raises(ValueError, match="2 figures of the paper"):
            rows(paper=published(text))


def test_names_without_a_heading_have_that_of_all_pages_or_are_their_own():
    assert names("quam = Q\n\nece\nmae") == {"quam": "Q", "ece": "ECE", "mae": "mae"}


def origin(machine=None, **known):
    machine = {"threads": 1, "cores": 2, "versions": {"torch": "2"}} | (machine or {})
    made = {"benchmark": "x", "command": "python -m x", "date": "2026-01-01", "machine": machine}
    return " ".join(_origin(made | known))


def test_a_page_says_what_may_have_changed_since_and_which_gpu_was_there():
    assert "was not recorded" in origin(code="1234567")
    changed = origin(code="1234567", parts={"gpc": "none"})
    assert "code that it uses changed in: gpc" in changed
    assert "not committed" in origin(code="1234567+", parts={})
    assert "(NVIDIA H100, 1 of 2 cores, torch 2)" in origin({"gpu": "NVIDIA H100"}, code="1")
