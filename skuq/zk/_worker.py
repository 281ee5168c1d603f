"""Runs one call of the proof system in a process of its own.

Started as a script, so that it loads nothing but the proof system: a proof that cannot be made
may never return, and the parent then ends this process.
"""

import json
import sys


def main() -> None:
    """Run ``function(**arguments)`` as the first argument says, in JSON."""
    import ezkl

    task = json.loads(sys.argv[1])
    result = getattr(ezkl, task["function"])(**task["arguments"])
    if result is False:
        sys.exit(3)


if __name__ == "__main__":
    main()
