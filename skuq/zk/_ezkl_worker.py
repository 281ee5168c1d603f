"""Script that runs one call of the proof system in a separate process.

It imports only the proof system. A proof of a false statement may never return; the parent process
then kills this process.
"""

import json
import sys


def main() -> None:
    """Run ``function(**arguments)``, given as JSON in the first command-line argument."""
    import ezkl

    task = json.loads(sys.argv[1])
    result = getattr(ezkl, task["function"])(**task["arguments"])
    if result is False:
        sys.exit(3)


if __name__ == "__main__":
    main()
