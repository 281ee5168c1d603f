"""The ``skuq`` command: a thin layer over the package, one module per command.

Exit codes: 0 done, 2 the input cannot be used (the message says why), 1 anything else. A verdict
of ``skuq audit`` has codes of its own, see `skuq.cli._verdict`.
"""

from __future__ import annotations

import click

from skuq import __version__
from skuq.cli._lazy import LazyGroup

COMMANDS = {
    "audit": ("skuq.cli._audit:audit", "Audit reported confidence against true labels."),
    "certify": ("skuq.cli._certify:certify", "Prove how far rows of a table keep their class."),
    "demo": ("skuq.cli._demo:demo", "Detect out-of-distribution images and unusual table rows."),
    "estimators": (
        "skuq.cli._estimators:estimators",
        "List the installed estimators, third-party plugins included.",
    ),
    "play": ("skuq.cli._play:play", "Play episodes with a trained agent."),
    "quantify": (
        "skuq.cli._quantify:quantify",
        "Quantify the uncertainty of predictions for a table.",
    ),
    "train-agent": ("skuq.cli._train_agent:train_agent", "Train an agent in an environment."),
}


@click.group(
    cls=LazyGroup, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="skuq")
def main() -> None:
    """Honest uncertainty for scikit-learn models."""
