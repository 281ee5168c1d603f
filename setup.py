"""Package metadata, extras and entry points."""

import re
from pathlib import Path

from setuptools import find_packages, setup

# Lower bounds are versions that the tests have passed with: constraints-oldest.txt holds them for
# `tox run -e oldest`, and `.ci/pythons` runs on torch 2.6. Tools of the documentation and of the
# tests follow constraints.txt.
HERE = Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (HERE / "skuq" / "_version.py").read_text(encoding="utf-8")
)[1]

# A package index shows no files of the repository: the picture and its caption stay at home, and
# links to files become their text.
README = (HERE / "README.md").read_text(encoding="utf-8")
DESCRIPTION = re.sub(r"!\[[^]]*\]\(docs/[^)]*\)\n\n\*[^*]*\*\n\n", "", README)
DESCRIPTION = re.sub(r"\[([^]]+)\]\((?!https?:)[^)]*\)", r"\1", DESCRIPTION)

# There are wheels of DGL 1 for CPython 3.11 alone, and none for Windows. DGL 2 cannot be imported
# beside current torch.
DGL = "python_version < '3.12' and sys_platform != 'win32'"
# There is no wheel of ezkl for Linux on ARM.
EZKL = "sys_platform != 'linux' or platform_machine != 'aarch64'"

EXTRAS = {
    "plot": ["matplotlib>=3.9.2"],
    "distributed": ["dask>=2024.8.2", "distributed>=2024.8.2"],
    "rl": [
        "stable-baselines3>=2.7.0",
        "sb3-contrib>=2.7.0",
        "gymnasium>=1.0.0",
        "MinAtar>=1.0.15",
    ],
    # DGL 1 needs `packaging`, of the core, without saying so.
    "graph": [f"dgl>=1.1.3,<2; {DGL}"],
    # posteriors 0.1.0 lacks schedules of step sizes, 0.1.1 does not import beside current optree.
    "sgmcmc": ["posteriors>=0.1.3"],
    # The circuits were examined with one version of ezkl; skuq refuses to work with others.
    "zk": [f"ezkl==23.0.5; {EZKL}", "filelock>=3.13.1", "onnx>=1.17.0"],
    # On Linux and Windows `xgboost` itself brings libraries for several GPUs, of 350 MB; on macOS
    # there is no `xgboost-cpu`.
    "boosting": [
        "lightgbm>=4.5.0",
        "xgboost-cpu>=2.1.4; sys_platform != 'darwin'",
        "xgboost>=2.1.4; sys_platform == 'darwin'",
    ],
    "outliers": ["pyod>=2.0.2"],
    "parquet": ["pyarrow>=19.0.0"],
    "skops": ["skops>=0.14.0"],
    "transformers": ["transformers>=4.48.0"],
    "docs": [
        "Sphinx>=9.0.4",
        "numpydoc>=1.11.0",
        "pydata-sphinx-theme>=0.24.0",
        "sphinx-copybutton>=0.5.2",
        "sphinx-design>=0.8.0",
        "sphinx-gallery>=0.22.1",
    ],
}
# The gallery draws graphs, agents and chains, and checks a proof.
EXTRAS["docs"] += [
    *EXTRAS["plot"],
    *EXTRAS["graph"],
    *EXTRAS["rl"],
    *EXTRAS["sgmcmc"],
    *EXTRAS["zk"],
]
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
    "hypothesis>=6.100.0",
    "mapie>=1.0.1",
    "mpmath>=1.3.0",
    "netcal>=1.4.0",
    "polars>=1.9.0",
    "pytest>=8.2.0",
    "pytest-cov>=5.0.0",
    "pytest-xdist>=3.6.1",
    "setuptools>=77.0.3",
    "torch-geometric>=2.6.1",
    "torchmetrics>=1.4.0",
]
EXTRAS["all"] = sorted({requirement for extra in EXTRAS.values() for requirement in extra})

setup(
    name="skuq",
    version=VERSION,
    description="Honest uncertainty for scikit-learn users",
    long_description=DESCRIPTION,
    long_description_content_type="text/markdown",
    author="skuq developers",
    license_expression="BSD-3-Clause",
    keywords=[
        "uncertainty",
        "calibration",
        "conformal prediction",
        "out-of-distribution detection",
        "Bayesian deep learning",
        "Gaussian processes",
        "reinforcement learning",
        "zero-knowledge proofs",
        "scikit-learn",
    ],
    python_requires=">=3.11",
    packages=find_packages(include=["skuq", "skuq.*"]),
    package_data={"skuq": ["py.typed"], "skuq.reporting": ["templates/*"]},
    install_requires=[
        "click>=8.3.0",
        "jinja2>=3.1.4",
        "joblib>=1.4.2",
        "numpy>=2.0.2",
        "packaging>=24.0",
        "pandas>=2.2.3",
        "psutil>=5.9.8",
        "scikit-learn>=1.6.1",
        "scipy>=1.13.1",
        "skorch>=1.2.0",
        "torch>=2.6.0",
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
            "RobustGPRegressor = skuq.gpc:RobustGPRegressor",
            "SGMCMCClassifier = skuq.baselines:SGMCMCClassifier",
            "UADQN = skuq.uadqn:UADQN",
        ],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
