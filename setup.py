"""Package metadata, extras and entry points."""

import re
from pathlib import Path

from setuptools import find_packages, setup

# Lower bounds are versions that the tests have passed with: those of the core in
# constraints-oldest.txt, all others in constraints.txt.
HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "skuq" / "_version.py").read_text())[1]

# A package index shows no files of the repository: the picture and its caption stay at home.
README = (HERE / "README.md").read_text(encoding="utf-8")
DESCRIPTION = re.sub(r"!\[[^]]*\]\(docs/[^)]*\)\n\n\*[^*]*\*\n\n", "", README)

EXTRAS = {
    "plot": ["matplotlib>=3.11.2"],
    "distributed": ["dask>=2026.8.0", "distributed>=2026.8.0"],
    "rl": [
        "stable-baselines3>=2.9.2",
        "sb3-contrib>=2.9.2",
        "gymnasium>=1.4.0",
        "MinAtar>=1.0.15",
        "filelock>=4.2.11",
    ],
    # DGL 2 cannot be imported beside current torch; DGL 1 needs `packaging` without saying so.
    "graph": ["dgl>=1.1.3,<2", "packaging>=26.3"],
    # posteriors 0.1.0 lacks schedules of step sizes, 0.1.1 does not import beside current optree.
    "sgmcmc": ["posteriors>=0.1.3"],
    # The circuits were examined with one version of ezkl; skuq refuses to work with others.
    "zk": ["cryptography>=50.0.2", "ezkl==23.0.5", "filelock>=4.2.11", "onnx>=1.23.2"],
    # `xgboost` itself requires libraries for several GPUs, of 350 MB.
    "boosting": ["lightgbm>=4.7.0", "xgboost-cpu>=3.2.0"],
    "outliers": ["pyod>=3.6.7"],
    "parquet": ["pyarrow>=26.0.1"],
    "skops": ["skops>=0.16.0"],
    "transformers": ["transformers>=5.23.0"],
    "docs": [
        "Sphinx>=9.0.4",
        "matplotlib>=3.11.2",
        "numpydoc>=1.11.0",
        "pydata-sphinx-theme>=0.24.0",
        "sphinx-copybutton>=0.5.2",
        "sphinx-design>=0.8.0",
        "sphinx-gallery>=0.22.1",
    ],
}
# The gallery draws graphs, agents and chains, and checks a proof.
EXTRAS["docs"] += [*EXTRAS["graph"], *EXTRAS["rl"], *EXTRAS["sgmcmc"], *EXTRAS["zk"]]
EXTRAS["test"] = [
    *EXTRAS["plot"],
    *EXTRAS["distributed"],
    *EXTRAS["graph"],
    *EXTRAS["rl"],
    *EXTRAS["sgmcmc"],
    *EXTRAS["zk"],
    *EXTRAS["boosting"],
    *EXTRAS["parquet"],
    *EXTRAS["skops"],
    *EXTRAS["transformers"],
    "hypothesis>=6.170.15",
    "mapie>=1.6.0",
    "mpmath>=1.3.0",
    "netcal>=1.4.0",
    "pytest>=9.2.0",
    "pytest-cov>=7.1.0",
    "pytest-xdist>=3.8.0",
    "setuptools>=84.2.1",
    "torch-geometric>=2.8.1",
    "torchmetrics>=1.9.0",
]
EXTRAS["all"] = sorted({requirement for extra in EXTRAS.values() for requirement in extra})

setup(
    name="skuq",
    version=VERSION,
    description="Honest uncertainty for scikit-learn users",
    long_description=DESCRIPTION,
    long_description_content_type="text/markdown",
    license="BSD-3-Clause",
    python_requires=">=3.11",
    packages=find_packages(include=["skuq", "skuq.*"]),
    package_data={"skuq": ["py.typed"], "skuq.reporting": ["templates/*"]},
    install_requires=[
        "click>=8.2.1",
        "jinja2>=3.1.4",
        "joblib>=1.4.2",
        "numpy>=2.0.2",
        "pandas>=2.2.3",
        "scikit-learn>=1.6.1",
        "scipy>=1.13.1",
        "skorch>=1.2.0",
        "torch>=2.13.0",
        "tqdm>=4.66.5",
    ],
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["skuq = skuq.cli:main"],
        "skuq.estimators": [
            "AnchoredQuantileRegressor = skuq.uadqn:AnchoredQuantileRegressor",
            "CalibrationAuditor = skuq.audit:CalibrationAuditor",
            "DeepEnsembleClassifier = skuq.baselines:DeepEnsembleClassifier",
            "EvidentialProbe = skuq.evidential:EvidentialProbe",
            "FeatureDistanceClassifier = skuq.baselines:FeatureDistanceClassifier",
            "LaplaceClassifier = skuq.baselines:LaplaceClassifier",
            "MCDropoutClassifier = skuq.baselines:MCDropoutClassifier",
            "MirageFineTuner = skuq.mirage:MirageFineTuner",
            "MirageRegressor = skuq.mirage:MirageRegressor",
            "QUAMClassifier = skuq.quam:QUAMClassifier",
            "QUAMRegressor = skuq.quam:QUAMRegressor",
            "ReferenceClassifier = skuq.baselines:ReferenceClassifier",
            "RobustGPC = skuq.gpc:RobustGPC",
            "SGMCMCClassifier = skuq.baselines:SGMCMCClassifier",
            "UADQN = skuq.uadqn:UADQN",
        ],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
