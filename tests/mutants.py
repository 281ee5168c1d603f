"""Puts small faults into the code, one at a time, and counts those that the tests notice.

    python -m tests.mutants                       # 100 faults of all packages
    python -m tests.mutants --number 30 skuq/gpc  # of one folder or module

A fault is one changed operator, bound, axis, clip or refusal. The choice depends on each fault's
own text and on the seed, so that the same faults come up again until their lines change. A fault is
run by a process of its own, which imports the changed module from memory: under the daily tests of
its package, cheapest first, and the doctests of its module, then the checks that all estimators
share, then all tests of its package, as where it was changed. A survivor is either a missing test
or harmless: the harmless ones stand, with the reason, in `tests/surviving_mutants.rst`.

What other processes do (workers of joblib, proofs, `python -m skuq`) is not changed.
"""

import argparse
import ast
import contextlib
import copy
import gc
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CPU_SECONDS = 150  # for a fault: what takes longer does not end
# Imported once, before the processes of the faults are forked.
PRELOADED = [
    *("numpy", "scipy.stats", "scipy.optimize", "pandas"),
    *("sklearn.ensemble", "sklearn.linear_model", "sklearn.gaussian_process"),
    *("sklearn.neural_network", "sklearn.model_selection", "sklearn.datasets"),
    "sklearn.utils.estimator_checks",
    *("torch", "torch.func", "torch.utils.data", "torch._dynamo", "skorch"),
    *("matplotlib.pyplot", "hypothesis.strategies", "hypothesis.extra.numpy", "click.testing"),
    *("pytest", "polars", "pyarrow.parquet", "jinja2", "gymnasium"),
    *("stable_baselines3", "lightgbm", "xgboost", "mpmath", "skops.io", "torch_geometric"),
]

OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
CALLS = {"minimum": "maximum", "min": "max", "any": "all", "floor": "ceil", "argmin": "argmax"}
CALLS |= {new: old for old, new in CALLS.items()}
CLIPS = ("clip", "clamp", "clip_", "clamp_")


class Fault(NamedTuple):
    """A change of a node of a module: where it is, and its statement's first line."""

    path: Path
    function: str
    old: str
    tree: ast.Module
    node: ast.AST
    attribute: str
    value: object

    def rank(self, seed: int) -> str:
        """Order of the choice: it depends on what the fault changes, not on where it stands."""
        change = type(self.value).__name__ if self.attribute != "self" else "left out"
        text = f"{seed}\n{self.function}\n{self.old}\n{ast.unparse(self.node)}\n{change}"
        return hashlib.sha256(text.encode()).hexdigest()

    def made(self) -> tuple[ast.Module, str]:
        """Return the changed module, and the faulty code in place of the node."""
        tree = copy.deepcopy(self.tree, memo := {})
        node = memo[id(self.node)]
        if self.attribute != "self":
            setattr(node, self.attribute, copy.deepcopy(self.value))
            return ast.fix_missing_locations(tree), ast.unparse(node)
        value = memo[id(self.value)]
        for parent in ast.walk(tree):
            for name, field in ast.iter_fields(parent):
                if field is node:
                    setattr(parent, name, value)
                elif isinstance(field, list):
                    field[:] = [value if each is node else each for each in field]
        return tree, ast.unparse(value)


def changes_of(node: ast.AST) -> Iterator[tuple[str, object]]:
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
            yield "op", OPERATORS[type(op)]()
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            yield "ops", [OPERATORS[type(op)]()]
        case ast.UnaryOp(op=ast.USub() | ast.Not()) if not isinstance(node.operand, ast.Constant):
            yield "self", node.operand
        case ast.Call(func=ast.Attribute(attr=name, value=of), args=[_, *_]) if name in CLIPS:
            yield "self", of  # not clipped
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield "func", ast.Name(CALLS[name], ast.Load())
        case ast.Call(func=ast.Attribute(attr=name, value=of)) if name in CALLS:
            yield "func", ast.Attribute(of, CALLS[name], ast.Load())
        case ast.keyword(arg="axis" | "dim", value=ast.Constant(value=0 | 1)):
            yield "value", ast.Constant(1 - node.value.value)
        case ast.If(body=[ast.Raise()], orelse=[]):
            yield "test", ast.Constant(False)  # not refused
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant(value=int() as number)):
            yield "right", ast.Constant(number + 1)


def faults_of(path: Path) -> Iterator[Fault]:
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def visit(node: ast.AST, names: tuple[str, ...], old: str) -> Iterator[Fault]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names, inner = (*names, node.name), node.body  # neither defaults nor annotations
        else:
            if isinstance(node, ast.stmt):
                old = ast.unparse(node).partition("\n")[0]
            inner = ast.iter_child_nodes(node)
            if names:
                function = f"{path.parent.name}.{'.'.join(names)}"
                for attribute, value in changes_of(node):
                    yield Fault(path, function, old, tree, node, attribute, value)
        for child in inner:
            yield from visit(child, names, old)

    yield from visit(tree, (), "")


def tests_of(path: Path) -> list[str]:
    """Paths of the tests of a module: those of its package, and its own doctests."""
    parts = path.relative_to(ROOT).parts
    folder = f"tests/{parts[1]}"
    if len(parts) == 2 or not (ROOT / folder).is_dir():
        own = [str(each.relative_to(ROOT)) for each in sorted((ROOT / "tests").glob("test_*.py"))]
        return [each for each in own if each != "tests/test_common.py"]
    return [str(path), folder]


class Changed(SourceFileLoader):
    def __init__(self, path: Path, tree: ast.Module) -> None:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        super().__init__(name, str(path))
        self.tree = tree

    def get_code(self, fullname: str):
        return compile(self.tree, self.path, "exec", dont_inherit=True)

    def find_spec(self, fullname: str, path=None, target=None):
        from importlib.util import spec_from_file_location

        if fullname != self.name:
            return None
        inner = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return spec_from_file_location(
            fullname, self.path, loader=self, submodule_search_locations=inner
        )


def run(changed: Changed | None, arguments: list[str], tier: str) -> tuple[str, float, str]:
    """Run tests under a fault in a forked process; return the outcome, CPU seconds and output."""
    import pytest

    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            code = 99
            try:
                if changed is not None:
                    sys.meta_path.insert(0, changed)
                    import_module(changed.name)  # before pytest, which imports doctests itself
                options = ["-x", "-q", "--tier", tier, "-p", "no:cacheprovider", "--tb", "line"]
                code = int(pytest.main([*options, *arguments]))
            finally:
                os._exit(code)
        _, status, usage = os.wait4(pid, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # processes that its tests started
        output.seek(0)
        text = output.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(status)
    outcome = "survived" if status in (0, 5) else "did not end" if status < 0 else "killed"
    return outcome, usage.ru_utime + usage.ru_stime, text


def judged(fault: Fault, seed: int) -> dict[str, object]:
    """Run the tests of a fault's package, then those of all estimators; report what they found."""
    tree, new = fault.made()
    changed = Changed(fault.path, tree)
    outcome, seconds, own = "survived", 0.0, tests_of(fault.path)
    for arguments, tier in ((own, "day"), (["tests/test_common.py"], "day"), (own, "all")):
        outcome, further, text = run(changed, arguments, tier)
        seconds += further
        if outcome != "survived":
            outcome += " by dear tests" if tier == "all" else ""
            break
    by = re.findall(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - |$)", text, re.MULTILINE)[:1]
    if by and run(None, by, "all")[0] != "survived":
        outcome = "fails anyway"
    place = f"{fault.path.relative_to(ROOT)}:{fault.node.lineno}"
    result = {"place": place, "function": fault.function, "rank": fault.rank(seed)}
    result |= {"old": ast.unparse(fault.node), "new": new, "statement": fault.old}
    print(f"{outcome:12} {seconds:5.1f} s {place} {fault.function}")
    print(f"      {result['old']}  ->  {new}", flush=True)
    return result | {"outcome": outcome, "seconds": round(seconds, 1), "by": by}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", default=["skuq"])
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time")
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    options = parser.parse_args()
    command = ["git", "ls-files", "-z", *options.paths]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name.endswith(".py")]
    faults = [fault for path in paths for fault in faults_of(path)]
    unlike = {fault.rank(options.seed): fault for fault in faults}
    chosen = [unlike[rank] for rank in sorted(unlike)[: options.number]]
    print(f"{len(chosen)} of {len(faults):,} faults", flush=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    for name in PRELOADED:
        try:
            __import__(name)
        except ImportError:
            print(f"without {name}")
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    gc.freeze()
    with tempfile.TemporaryDirectory() as compiled, ThreadPoolExecutor(options.jobs) as pool:
        sys.dont_write_bytecode, sys.pycache_prefix = False, compiled
        results = list(pool.map(judged, chosen, [options.seed] * len(chosen)))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    counts = dict(Counter(each["outcome"] for each in results))
    noticed = len(results) - counts.get("survived", 0)
    share = f"{noticed / len(results):.0%}"
    print(f"{noticed} of {len(results)} faults noticed ({share}): {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
