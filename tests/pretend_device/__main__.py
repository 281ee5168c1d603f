"""Run the tests marked `gpu` on pretended devices: ``python -m tests.pretend_device cuda mps``."""

import os
import subprocess
import sys

TESTS = ["tests/test_gpu.py"]
kinds = [argument for argument in sys.argv[1:] if argument in ("cuda", "mps")]
options = [argument for argument in sys.argv[1:] if argument not in kinds]
failed = 0
for kind in kinds or ("cuda", "mps"):
    print(f"tests on a pretended device: {kind}", flush=True)
    command = [sys.executable, "-m", "pytest", "-m", "gpu", *TESTS, *options]
    environment = {**os.environ, "PRETEND_DEVICE": kind}
    failed |= subprocess.run(command, env=environment, check=False).returncode
sys.exit(failed)
