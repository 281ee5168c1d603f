"""A plugin as a third party would write it: one entry point is all that skuq needs."""

from setuptools import setup

setup(
    name="skuq-neighbours",
    version="1.0",
    packages=["skuq_neighbours"],
    install_requires=["skuq"],
    entry_points={
        "skuq.estimators": ["NeighbourUncertainty = skuq_neighbours:NeighbourUncertainty"]
    },
)
