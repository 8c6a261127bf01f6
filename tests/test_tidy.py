"""The habits of the code base, as tests: sizes, names, the file map, what may not be in the tree.

Where a rule has an exception it is listed here with its reason, and an exception nobody needs any
more fails too.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.config import BROKER_SETTINGS, TOPIC_SETTINGS
from tools import make_settings_table, make_tool_differences
from tools.codec_build import compiled_modules
from tools.make_file_map import file_map, with_file_map

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headrace"

MODULE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 70

# The message tables are data: a module is as long as its API's history.
TABLES = "protocol/messages/"

# Where an error of any kind has to be turned into an answer, a log line or an exit status.
BROAD_EXCEPTS = {
    "broker/coordination/runtime.py": "a shard that raises is dropped, and its request refused",
    "client/producer/delivery.py": "an application's callback raises what it likes; it is logged",
    "client/producer/sender.py": "a bug ends in an exception for whoever waits for a delivery",
    "client/serializers.py": "an application's function raises what it likes; it is raised again",
    "net/server.py": "a connection that cannot be served is closed; handlers report their bugs",
    "pipelines/frames/dataframes.py": "a step's function raises what it likes: its error",
    "pipelines/spec/user_code.py": "a user's file raises what it likes; it is told with its line",
    "testing/simulation/loop.py": "what work for a thread raises goes to whoever waits for it",
    "testing/simulation/simulated_network.py": "a protocol that raises loses its connection",
}

# A task that nobody owns fails unseen. In the broker only its owner starts any, and a connection
# the tasks of replies that wait, whose errors it answers for.
TASK_STARTERS = {"net/server.py", "tasks.py"}
CLIENTS_AND_SURFACES = ("cli/", "client/", "pipelines/", "testing/")

# The shell around the disk, and the surfaces, which read and write what a user names.
FILE_OPENERS = ("storage/files.py", "cli/", "pipelines/", "testing/time_limits.py")

# A wait of ten seconds or more is a limit: it must know how busy the machine is.
FIXED_LIMIT = re.compile(
    r"deadline = (?:time\.monotonic|loop\.time)\(\) \+|\btimeout=[1-9]\d"
    r"|\.(?:wait|join|flush|result|communicate|settimeout)\([1-9]\d+(?:\.\d+)?\)"
)
TESTS_WITH_PROCESSES = ("tests/compat/", "tests/integration/", "tests/spark/")

GENERATED = {"build", "dist", "headrace-data", "__pycache__"}
HIDDEN_BUT_OURS = {".ci", ".github", ".gitignore", ".pre-commit-config.yaml"}
BINARY = {".bin", ".gz", ".png", ".so", ".log", ".index", ".timeindex", ".snapshot"}

UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:root|work|home|Users)/[\w.]")
REGISTRY = re.compile(
    r"(?:extra-)?index-url\s*[= ]\s*\S|find-links\s*[= ]\s*\S|https?://\S+/simple\b"
    r"|https?://\S*(?:pypi|pythonhosted|artifactory|nexus)\S*"
)


def python_modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def text_files() -> Iterator[Path]:
    """Every text file a commit could hold."""
    pending = [ROOT]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            hidden = path.name.startswith(".") and path.name not in HIDDEN_BUT_OURS
            if hidden or path.name in GENERATED or path.name.endswith(".egg-info"):
                continue
            if path.is_dir():
                pending.append(path)
            elif path.suffix not in BINARY and not (
                path.suffix == ".c" and PACKAGE in path.parents
            ):
                yield path


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def long_functions(source: str) -> list[str]:
    return [
        f"{node.name} at line {node.lineno}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]


def broad_excepts(source: str) -> list[int]:
    """Lines that catch everything: bare, `Exception` or `BaseException`, alone or in a tuple.

    A handler that ends by raising what it caught tidies up and hides nothing.
    """

    def is_broad(kind: ast.expr | None) -> bool:
        if isinstance(kind, ast.Tuple):
            return any(is_broad(one) for one in kind.elts)
        return kind is None or (
            isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"}
        )

    handlers = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ExceptHandler))
    return [
        handler.lineno
        for handler in handlers
        if is_broad(handler.type) and ast.unparse(handler.body[-1]) != "raise"
    ]


def task_starts(source: str) -> list[int]:
    """Lines that start a task: `create_task`, `ensure_future`, of asyncio or of a loop."""
    starters = {"create_task", "ensure_future", "run_coroutine_threadsafe"}
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr in starters)
        or (isinstance(node, ast.Name) and node.id in starters)
    ]


def timer_times(source: str) -> list[int]:
    """Lines that ask a timer when it is due: uvloop's that are due at once cannot say."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr == "when"
    ]


def file_opens(source: str) -> list[int]:
    """Lines that open a file by themselves: `open`, `os.open`, `Path.read_text` and the like."""
    methods = {"fdopen", "mkstemp", "read_text", "write_text", "write_bytes", "touch"}

    def opens(call: ast.Call) -> bool:
        match call.func:
            case ast.Name(id="open"):
                return True
            case ast.Attribute(value=ast.Name(id="os" | "io" | "gzip"), attr="open"):
                return True
            case ast.Attribute(attr=name):
                return name in methods
        return False

    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if opens(call)]


def listed_modules() -> list[str]:
    """The modules that docs/architecture.md lists, as paths below the package."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("\n## File map\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^- `([\w/]+\.py)`", section, re.MULTILINE)


def test_modules_stay_short() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in python_modules()}
    code = {name: lines for name, lines in lengths.items() if not name.startswith(TABLES)}
    assert {name: lines for name, lines in code.items() if lines > MODULE_LINES_MAX} == {}


def test_functions_stay_short() -> None:
    found = {relative(path): long_functions(path.read_text()) for path in python_modules()}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_every_module_says_what_it_is() -> None:
    silent = [
        relative(path)
        for path in python_modules()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_modules_are_nouns_not_drawers() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert [relative(path) for path in python_modules() if path.name in drawers] == []


def test_everything_is_caught_only_at_a_boundary() -> None:
    found = {relative(path): broad_excepts(path.read_text()) for path in python_modules()}
    assert {name for name, lines in found.items() if lines} == set(BROAD_EXCEPTS)


def test_every_task_of_the_broker_has_an_owner() -> None:
    """Start it with `TaskScope.start` of headrace.tasks."""
    found = {relative(path): task_starts(path.read_text()) for path in python_modules()}
    broker = {name for name in found if not name.startswith(CLIENTS_AND_SURFACES)}
    assert {name for name in broker if found[name]} == TASK_STARTERS


def test_no_timer_is_asked_when_it_is_due() -> None:
    """Keep the time beside the handle."""
    found = {relative(path): timer_times(path.read_text()) for path in python_modules()}
    # Spark's columns have a `when` too.
    assert not {name for name in found if found[name] and not name.startswith("pipelines/")}


def test_only_the_storage_shell_and_the_surfaces_open_files() -> None:
    found = {relative(path): file_opens(path.read_text()) for path in python_modules()}
    assert [name for name in found if found[name] and not name.startswith(FILE_OPENERS)] == []


def test_nothing_is_left_for_later_in_a_comment() -> None:
    assert lines_matching(UNFINISHED) == []


def test_limits_of_time_know_how_busy_the_machine_is() -> None:
    """Use `scaled`, `Deadline` or `wait_until` of headrace.testing.time_limits."""
    found = lines_matching(FIXED_LIMIT)
    assert [line for line in found if line.startswith(TESTS_WITH_PROCESSES)] == []


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    assert lines_matching(MACHINE_PATH) == []


def test_no_address_of_a_package_registry_is_in_the_tree() -> None:
    assert lines_matching(REGISTRY) == []


def test_file_map_lists_every_module_once_and_nothing_else() -> None:
    modules = [relative(path) for path in python_modules() if path.name != "__init__.py"]
    assert sorted(listed_modules()) == sorted(modules)


def test_file_map_says_what_the_modules_say_of_themselves() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert with_file_map(page, file_map(PACKAGE)) == page, "run tools/make_file_map.py"


def test_the_page_about_compatibility_tells_the_settings_that_the_code_declares() -> None:
    page = make_settings_table.PAGE.read_text()
    assert make_settings_table.with_settings(page) == page, "run tools/make_settings_table.py"


def test_the_page_about_compatibility_lists_the_differences_that_kafkas_tools_see() -> None:
    page = make_tool_differences.PAGE.read_text()
    assert make_tool_differences.with_differences(page) == page, "run tools/make_tool_differences"


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in text_files()
        if document.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert broken == []


def test_files_that_documents_name_exist() -> None:
    missing = [
        f"{document.relative_to(ROOT)}: {name}"
        for document in text_files()
        if document.suffix == ".md"
        for name in re.findall(r"`([\w/]+/[\w]+\.(?:py|md|toml|txt))`", document.read_text())
        if not ((ROOT / name).exists() or (PACKAGE / name).exists())
    ]
    assert missing == []


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_opens_with_the_commands_to_type(command: str) -> None:
    assert command in (ROOT / "README.md").read_text()


def test_changelog_begins_with_what_is_unreleased_and_the_version_of_the_package() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(headrace.__version__)}\] - \d{{4}}-\d\d-\d\d", headings[1])


def test_every_setting_is_documented() -> None:
    documented = set(re.findall(r"`([\w.]+)`", (ROOT / "docs" / "configuration.md").read_text()))
    assert {*BROKER_SETTINGS, *TOPIC_SETTINGS} - documented == set()


def test_every_core_is_bound_by_the_sans_io_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    [contract] = [one for one in contracts if one["name"] == "cores are sans-I/O"]
    cores = {"coordinator", "metadata", "metrics", "protocol", "raft", "replication", "security"}
    present = {f"headrace.{name}" for name in cores if any((PACKAGE / name).glob("*.py"))}
    assert set(contract["source_modules"]) == present


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = {*project["dependencies"], *(one for extra in extras for one in extra)}
    names = {re.split(r"[<>=\[]", one, maxsplit=1)[0].lower() for one in wanted}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    ours = {project["name"]}  # One extra asks for others.
    assert names - ours - {pin.split("==")[0].lower() for pin in pins} == set()


def test_every_module_with_a_stub_is_compiled_by_setup() -> None:
    named = (ROOT / "setup.py").read_text()
    assert [name for name in compiled_modules() if f'"{name}"' not in named] == []


def test_rules_find_what_they_look_for() -> None:
    body = "    pass\n" * FUNCTION_LINES_MAX
    assert long_functions(f"def f():\n{body}") == ["f at line 1"]
    assert long_functions(f"def f():\n{body[: -len('    pass ')]}") == []
    caught = "try:\n    pass\nexcept {}:\n    pass\n"
    assert broad_excepts(caught.format("Exception as error")) == [3]
    assert broad_excepts(caught.format("(OSError, BaseException)")) == [3]
    assert broad_excepts(caught.format("OSError")) == []
    assert broad_excepts("try:\n    work()\nexcept BaseException:\n    undo()\n    raise\n") == []
    assert file_opens("open('x')\nos.open('x', 0)\nPath('x').read_text()\nlog.open()") == [1, 2, 3]
    assert task_starts("asyncio.create_task(x)\nloop.create_task(x)\nensure_future(x)") == [1, 2, 3]
    assert task_starts("scope.start(x)") == []
    assert timer_times("handle.when()\nwhen = 1") == [1]
    assert UNFINISHED.search("# TO" + "DO: later")
    assert MACHINE_PATH.search("see /ho" + "me/someone/notes")
    assert not MACHINE_PATH.search("see docs/work/notes")
    assert REGISTRY.search("pip install --index-" + "url https://host/x")
