"""Duration of ``import skuq`` in a new process, minus that of a bare interpreter."""

import statistics
import subprocess
import sys
import time

from benchmarks.harness import finish, parser, record


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n", type=int, default=15, help="processes of each kind")
    args = arguments.parse_args()
    seconds("import skuq")  # warm-up: writes byte code
    bare, with_skuq = [], []
    for _ in range(args.n):
        bare.append(seconds("pass"))
        with_skuq.append(seconds("import skuq"))
    extra = statistics.median(with_skuq) - statistics.median(bare)
    print(f"import skuq: {extra:.3f} s over a bare interpreter (medians of {args.n})")
    finish(
        "import_time",
        args,
        [
            record("bare", "python", "seconds_median", statistics.median(bare), args.n),
            record("skuq", "python", "seconds_median", statistics.median(with_skuq), args.n),
            record("skuq", "python", "seconds_over_bare", extra, args.n),
        ],
    )


if __name__ == "__main__":
    main()
