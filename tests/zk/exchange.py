"""One small commitment and honest proofs of it, each made when a test asks for it."""

import shutil
import tempfile
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.zk import _commit as sizes
from skuq.zk import _ezkl as backend
from skuq.zk import attest, challenge, commit, prove, verify

N, SAMPLE = 12, {"false_share": 0.3, "error": 0.1}
TWO_BLOCKS = 30  # more rows than fit into the first block of columns
ASKED, TEST = {"alpha": 0.2, "n_bins": 2}, {"allow_test_string": True}
AUDITOR = {"classes": [0, 1], **TEST}


@contextmanager
def quick_commitments():
    """Circuits of one column, which is quicker for few rows, and one reference string for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "AUDIT_COLUMNS", 1)
        patch.setattr(backend, "make_reference_string", copy_of_the_string)
        yield patch


make_reference_string = backend.make_reference_string


@cache
def string_of(log_rows):
    """The reference string of this size, which takes seconds to make."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "srs"
        make_reference_string(path, log_rows)
        return path.read_bytes()


def copy_of_the_string(path, log_rows):
    path.write_bytes(string_of(log_rows))


def reuse_keys(patch, private):
    """Copy the keys of a commitment, which follow from the architecture alone."""

    def copied(circuit, verifying, proving, srs):
        for key in (verifying, proving):
            shutil.copyfile(private / key.name, key)

    patch.setattr(backend, "setup", copied)


class Exchange:
    """A commitment, and the proofs that are asked for."""

    def __init__(self, folder):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(60, 2))
        y = (X[:, 0] + rng.normal(size=60) > 0).astype(int)
        self.X, self.y, self.folder, self.keys = X[:N], y[:N], folder, folder / "keys"
        table = pd.DataFrame(X, columns=["a", "b"])
        with quick_commitments() as patch:
            patch.setattr(sizes, "MANY_ROWS", TWO_BLOCKS)
            self.public = commit(
                LogisticRegression().fit(X, y),
                table,
                folder,
                n_bins=2,
                n_proofs=2,
                n_attestations=3,
                tolerance=0.02,
            ).folder
        self.ledger = folder / "private" / "ledger.json"
        self.challenge = folder / "challenge.json"

    @cached_property
    def attestation(self):
        return attest(self.public, self.X[0], self.folder / "attestation.json", nonce="1")

    def audit(self, level):
        """The bundle of a level, made once."""
        bundle, data = self.folder / level, (self.X, self.y)
        if level == "bins" and not bundle.exists():
            prove(self.public, *data, bundle, level=level, **ASKED)
        if level == "predictions" and not bundle.exists():
            prove(self.public, *data, bundle, level=level, **ASKED)
            challenge(bundle, self.public, *data, self.challenge, **SAMPLE)
            prove(self.public, *data, bundle, level=level, challenge=self.challenge, **ASKED)
        return bundle

    def verify(self, level, bundle=None, y=None, public=None, **settings):
        own = {} if level == "bins" else {"challenge": self.challenge}
        return verify(
            self.audit(level) if bundle is None else bundle,
            self.X,
            self.y if y is None else y,
            self.public if public is None else public,
            **{
                "keys": self.keys,
                "level": level,
                "confidence_level": 0.95,
                **AUDITOR,
                **ASKED,
                **own,
                **settings,
            },
        )
