"""A plugin that cannot be imported, as happens when something it needs is missing."""

from setuptools import setup

setup(
    name="skuq-broken",
    version="1.0",
    packages=["skuq_broken"],
    entry_points={"skuq.estimators": ["BrokenUncertainty = skuq_broken:BrokenUncertainty"]},
)
