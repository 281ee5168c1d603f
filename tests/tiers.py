"""Which items run by day, measured: those that cost little, and all of the packages that changed.

`tests/cpu_seconds.json` holds the CPU seconds of the items and shared fixtures that are not cheap.
`pytest --measure`, as in `tox run -e all`, writes it anew and fails if an item left its class by a
factor of three. `pytest --tier day`, as in `tox run -e py`, takes

- every item of at most `CHEAP` seconds, unless it needs a shared fixture above `CHEAP_FIXTURE`;
- of each function without such items the cheapest one of at most `CHEAPEST` seconds;
- every item of a package whose code or tests differ from the main branch.

Items that are not in the file count as cheap; those marked `thorough` never do.
"""

import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path
from random import randrange

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "cpu_seconds.json"
CHEAP, CHEAPEST, CHEAP_FIXTURE = 0.2, 0.5, 3.0
LEFT = 3  # factor by which an item leaves its class
SEED = "SKUQ_HYPOTHESIS_SEED"
# Tests that follow the code of another package, too.
FOLLOWERS = {"zk": {"cli"}, "models": {"zk"}, "_table_files": {"tables", "cli"}}


def pytest_addoption(parser):
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=["day", "all"], default="all", help="which items run")
    group.addoption("--measure", action="store_true", help=f"write CPU seconds to {FILE.name}")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.pluginmanager.register(Tiers(config), "skuq-tiers")
    # By day, examples are the same each time; else they are new, and the seed is shown.
    settings.register_profile("day", deadline=None, derandomize=True, database=None)
    settings.register_profile("all", deadline=None, database=None, print_blob=True)
    settings.load_profile("all" if config.getoption("measure") else "day")
    if config.getoption("measure") and config.getoption("hypothesis_seed") is None:
        # Workers inherit what the first process chose.
        config.option.hypothesis_seed = os.environ.setdefault(SEED, str(randrange(2**32)))


def pytest_report_header(config):
    return f"seed of hypothesis: {os.environ[SEED]}" if SEED in os.environ else None


def function_of(nodeid):
    return nodeid.partition("[")[0]


def package_of(path):
    """The package to which a file of the code or of the tests belongs; "top" for skuq's modules."""
    parts = Path(path).parts
    if parts[0] not in ("skuq", "tests"):
        return None
    return parts[1] if len(parts) > 2 else "top"


def changed_packages():
    def git(*arguments):
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.split("\n")[:-1] if done.returncode == 0 else []

    try:
        base = git("merge-base", "HEAD", "origin/main") or git("merge-base", "HEAD", "main")
        files = git("diff", "--name-only", *base) + git("ls-files", "-o", "--exclude-standard")
    except OSError:  # no git
        return set()
    packages = {package_of(each) for each in files if ROOT / each != FILE} - {None}
    return packages.union(*(FOLLOWERS.get(each, ()) for each in packages))


def packages_of(item):
    """The package of an item; with that of the estimator on which it runs a check."""
    packages = {package_of(item.nodeid.partition("::")[0])}
    case = getattr(item, "callspec", None)
    module = type(case.params.get("estimator") if case else None).__module__.split(".")
    return packages | set(module[1:2] if module[0] == "skuq" else ())


def shared_fixtures(item):
    """Keys of the fixtures of an item that other items share."""
    info = getattr(item, "_fixtureinfo", None)
    for definitions in getattr(info, "name2fixturedefs", {}).values():
        if definitions[-1].scope != "function":
            yield key_of(definitions[-1])


def key_of(definition):
    return f"{definition.baseid}::{definition.argname}"


def cpu_seconds():
    return sum(os.times()[:4])


class Tiers:
    def __init__(self, config):
        self.recorded = {"items": {}, "fixtures": {}}
        if FILE.exists():
            self.recorded |= json.loads(FILE.read_text(encoding="utf-8"))
        self.config = config
        self.items, self.fixtures = {}, {}
        self.started, self.shared = 0.0, []
        self.in_full = set()

    def seconds(self, item):
        return self.recorded["items"].get(item.nodeid, 0.0)

    def by_day(self, items):
        self.in_full = changed_packages()
        dear_fixtures = {k for k, v in self.recorded["fixtures"].items() if v > CHEAP_FIXTURE}
        functions = defaultdict(list)
        for item in items:
            functions[function_of(item.nodeid)].append(item)
        chosen = set()
        for cases in functions.values():
            chosen.update(each for each in cases if self.in_full & packages_of(each))
            cases = [
                each
                for each in cases
                if dear_fixtures.isdisjoint(shared_fixtures(each))
                and each.get_closest_marker("thorough") is None
            ]
            cheap = [each for each in cases if self.seconds(each) <= CHEAP]
            if not cheap and cases:
                cheapest = min(cases, key=self.seconds)
                cheap = [cheapest] if self.seconds(cheapest) <= CHEAPEST else []
            chosen.update(cheap)
        return [item for item in items if item in chosen]

    def pytest_collection_modifyitems(self, config, items):
        if config.getoption("tier") == "day":
            chosen = self.by_day(items)
            config.hook.pytest_deselected(items=list(set(items).difference(chosen)))
            items[:] = chosen
        # A fault shows in seconds: files by what they cost, and so the items of a file.
        total = defaultdict(float)
        for item in items:
            total[item.nodeid.partition("::")[0]] += self.seconds(item) + 0.02
        order = {path: place for place, path in enumerate(sorted(total, key=total.get))}
        items.sort(key=lambda each: (order[each.nodeid.partition("::")[0]], self.seconds(each)))

    def pytest_report_collectionfinish(self, items):
        if self.in_full:
            return f"changed, and thus tested in full: {', '.join(sorted(self.in_full))}"
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self):
        self.started, self.shared = cpu_seconds(), []
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        started = cpu_seconds()
        inner = len(self.shared)
        found = yield
        if fixturedef.scope != "function":
            spent = cpu_seconds() - started - sum(spent for _, spent in self.shared[inner:])
            self.shared.append((key_of(fixturedef), spent))
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call):
        report = yield
        if call.when == "teardown":
            spent = cpu_seconds() - self.started - sum(spent for _, spent in self.shared)
            report.cpu_seconds, report.shared_fixtures = spent, self.shared
        return report

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":  # sent by the workers to the process that writes
            self.items[report.nodeid] = report.cpu_seconds
            for key, spent in report.shared_fixtures:
                self.fixtures[key] = max(spent, self.fixtures.get(key, 0.0))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if not session.config.getoption("measure") or hasattr(session.config, "workerinput"):
            return
        if left := self.left():
            print("\nItems that left their class; tests/cpu_seconds.json is written anew:")
            print("\n".join(left))
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        FILE.write_text(self.as_json(), encoding="utf-8")

    def left(self):
        """Lines about the items whose seconds left their class by a factor of three."""
        lines = []
        for name, spent in sorted(self.items.items()):
            before = self.recorded["items"].get(name, 0.0)
            if (before <= CHEAP and spent > LEFT * CHEAP) or (before > CHEAP > LEFT * spent):
                lines.append(f"{before:6.2f} -> {spent:6.2f} s {name}")
        return lines

    def as_json(self):
        """Write what is not cheap; seconds that hardly moved stay as they are."""
        whole = len(self.items) > 1000  # else a part of the tests ran: the others keep theirs
        seconds = {}
        for kind, now, least in (
            ("fixtures", self.fixtures, CHEAP_FIXTURE / 3),
            ("items", self.items, CHEAP / 2),
        ):
            before = self.recorded[kind]
            steady = {k: v for k, v in before.items() if k in now and v / 1.5 < now[k] < v * 1.5}
            found = ({} if whole else before) | now | steady
            seconds[kind] = {k: round(v, 2) for k, v in sorted(found.items()) if v > least}
        return json.dumps(seconds, indent=0) + "\n"
