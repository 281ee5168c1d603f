"""Script that runs one call of the proof system in a process of its own.

It loads nothing but the proof system. An impossible proof may never return; the parent process
then ends this one.
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
