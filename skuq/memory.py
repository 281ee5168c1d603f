"""Available memory, checked before computations that need much memory."""

from __future__ import annotations

from pathlib import Path

import psutil

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]


def available_memory() -> int:
    """Bytes that this process can still allocate, within machine, container and process limits."""
    found = [psutil.virtual_memory().available]
    group = Path("/sys/fs/cgroup")  # limit of a Linux container, which psutil ignores
    try:
        limit = int((group / "memory.max").read_text(encoding="utf-8"))
        lines = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
        stat = dict(line.split() for line in lines)
        cached = int(stat["inactive_file"]) + int(stat["active_file"])  # the system can free it
        used = int((group / "memory.current").read_text(encoding="utf-8"))
        found.append(limit - used + cached)
    except (OSError, ValueError):  # not in a container, or the limit is "max": no limit
        pass
    if resource is not None:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            found.append(limit - psutil.Process().memory_info().vms)
    return max(0, min(found))
