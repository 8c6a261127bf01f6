"""The habits of the code base, as tests: sizes, names, generated pages, forbidden content.

An exception to a rule is listed here with its reason, and an exception that is no longer needed
fails too.
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.config import BROKER_SETTINGS, TOPIC_SETTINGS
from tools import make_authorization_table, make_settings_table, make_tool_differences
from tools.codec_build import compiled_modules
from tools.make_file_map import is_table, modules_page

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headrace"

MODULE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 70

# The message tables are data: a module is as long as its API's history.
TABLES = "protocol/messages/"

# Modules that convert errors of any kind to an answer, a log line or an exit status.
BROAD_EXCEPTS = {
    "broker/coordination/runtime.py": "a shard that raises is dropped, and its request refused",
    "client/blocking.py": "whatever ends a wait is raised in the call that waits",
    "client/producer/delivery.py": "an application's callback raises what it likes; it is logged",
    "client/producer/sender.py": "a bug ends in an exception for whoever waits for a delivery",
    "client/serializers.py": "an application's function raises what it likes; it is raised again",
    "console/avro_views.py": "the data of strangers has the library raise what it likes",
    "net/sasl_login.py": "a token provider raises what it likes; its text may have a secret",
    "net/http_server.py": "a request that fails is answered with 500; its bug is reported",
    "net/server.py": "a connection that cannot be served is closed; handlers report their bugs",
    "pipelines/frames/dataframes.py": "a step's function raises what it likes: its error",
    "pipelines/spec/user_code.py": "a user's file raises what it likes; it is told with its line",
    "testing/simulation/loop.py": "what work for a thread raises goes to whoever waits for it",
    "testing/simulation/simulated_network.py": "a protocol that raises loses its connection",
}

# A task without an owner fails unseen. In the broker only its owner starts any, and a connection
# the tasks of replies that wait, whose errors it handles.
TASK_STARTERS = {"net/server.py", "tasks.py"}
CLIENTS_AND_SURFACES = ("cli/", "client/", "pipelines/", "testing/")

# The shell around the disk, and the surfaces, which read and write what a user names.
FILE_OPENERS = (
    "broker/process_usage.py",
    "client/property_files.py",
    "net/sasl_login.py",
    "storage/files.py",
    "storage/key_sources.py",
    "cli/",
    "pipelines/",
    "testing/broker.py",
    "testing/time_limits.py",
)

# A wait of ten seconds or more is a limit: it must adapt to the load of the machine, as it is then,
# and not as it was when the module was imported.
FIXED_LIMIT = re.compile(
    r"^[A-Z_]+ = (?:int\()?scaled\("
    r"|deadline = (?:time\.monotonic|loop\.time)\(\) \+|\btimeout=[1-9]\d"
    r"|\.(?:wait|join|flush|result|communicate|settimeout)\([1-9]\d+(?:\.\d+)?\)"
)
TESTS_WITH_PROCESSES = ("tests/compat/", "tests/integration/", "tests/spark/")

# Packages whose modules are named after a thing that another package keeps or decides: the
# directory says which side of it. Each has such a name once.
SURFACES = (
    "broker/handlers/",
    "cli/",
    "client/admin/",
    "config/",
    "console/",
    "pipelines/",
    "testing/",
)
# Names for a role that many packages have a module for; their readers look for it in the package.
ROLE_MODULES = {"aio", "apis", "errors", "metrics", "options", "records", "types"}

# Modules above TESTED_LINES_MIN without a test file of their name, and the file below tests/ that
# runs most of them, or why there is none.
TESTED_LINES_MIN = 100
TESTED_ELSEWHERE = {
    "broker/access/cluster_rules.py": "unit/broker/test_authorization.py",
    "broker/access/group_rules.py": "unit/broker/test_authorization.py",
    "broker/access/rules.py": "unit/broker/test_authorization.py",
    "broker/access/topic_rules.py": "unit/broker/test_authorization.py",
    "broker/access/transaction_rules.py": "unit/broker/test_authorization.py",
    "broker/admin_listener.py": "integration/test_admin_listener.py",
    "broker/apis.py": "unit/broker/test_dispatch.py",
    "broker/authentication.py": "integration/security/test_sasl_connections.py",
    "broker/group_lag.py": "integration/test_metrics.py",
    "broker/partition_summary.py": "integration/test_metrics.py",
    "broker/sasl_exchanges.py": "integration/security/test_sasl_clients.py",
    "broker/json_web_keys.py": "integration/security/test_sasl_clients.py",
    "cli/search.py": "integration/test_search.py",
    "cli/top.py": "integration/test_top.py",
    "cli/users.py": "integration/security/test_users_cli.py",
    "client/admin/users.py": "integration/security/test_sasl_clients.py",
    "net/sasl_login.py": "integration/security/test_sasl_clients.py",
    "broker/compactor.py": "integration/test_compaction.py",
    "broker/handlers/configs.py": "integration/test_config_resources.py",
    "broker/handlers/find_coordinator.py": "integration/groups/test_bad_group_requests.py",
    "broker/handlers/groups.py": "integration/groups/test_rebalancing.py",
    "broker/handlers/quorum.py": "integration/cluster/test_bootstrap_controller.py",
    "broker/handlers/topics.py": "integration/client/test_admin.py",
    "broker/node_metrics.py": "integration/test_admin_listener.py",
    "broker/quorum/log_replication.py": "unit/broker/quorum/test_quorum.py",
    "broker/request.py": "unit/broker/test_authorization.py",
    "cli/console.py": "integration/console/test_console.py",
    "cli/console_process.py": "integration/console/test_up.py",
    "console/pages/message_streams.py": "integration/console/test_messages.py",
    "console/pages/messages.py": "integration/console/test_messages.py",
    "console/record_reader.py": "integration/console/test_messages.py",
    "console/app.py": "integration/console/test_console.py",
    "console/cluster_access.py": "integration/console/test_console.py",
    "console/dead_letter_replay.py": "integration/console/test_pipelines.py",
    "console/oidc.py": "integration/console/test_oidc.py",
    "console/offset_resets.py": "integration/console/test_changes.py",
    "console/pages/brokers.py": "integration/console/test_browser.py",
    "console/pages/groups.py": "integration/console/test_changes.py",
    "console/pages/pipelines.py": "integration/console/test_pipelines.py",
    "console/pages/security.py": "integration/console/test_changes.py",
    "console/pages/topic_changes.py": "integration/console/test_changes.py",
    "console/pages/topics.py": "integration/console/test_browser.py",
    "console/pages/transactions.py": "integration/console/test_changes.py",
    "console/pages/sign_in.py": "integration/console/test_sign_in.py",
    "console/rendering.py": "integration/console/test_console.py",
    "console/server.py": "integration/console/test_console.py",
    "console/viewers.py": "integration/console/test_sign_in.py",
    "cli/acls.py": "integration/test_acls.py",
    "cli/clients.py": "unit/cli/test_reading.py",
    "cli/kafka_options.py": "unit/cli/test_main.py",
    "cli/log/repair.py": "unit/cli/log/test_metadata_repair.py",
    "cli/log/scrub.py": "unit/cli/log/test_dump.py",
    "cli/log/verify.py": "unit/cli/log/test_dump.py",
    "cli/pipeline_display.py": "unit/cli/test_pipeline.py",
    "cli/reassignment_moves.py": "unit/cli/test_reassign.py",
    "cli/roles.py": "integration/test_acls.py",
    "client/admin/acls.py": "integration/test_acls.py",
    "client/admin/admin_requests.py": "unit/client/admin/test_topics.py",
    "client/admin/aio.py": "unit/client/admin/test_admin.py",
    "client/common_options.py": "unit/client/test_options.py",
    "client/consumer/committed_offsets.py": "unit/client/consumer/test_group.py",
    "client/consumer/consumer.py": "integration/client/test_consumer.py",
    "client/consumer/consumer_calls.py": "integration/client/test_consumer.py",
    "client/consumer/consumer_engine.py": "unit/client/consumer/test_fetcher.py",
    "client/consumer/positions.py": "unit/client/consumer/test_fetcher.py",
    "client/consumer/rebalance_listener.py": "integration/client/test_consumer_groups.py",
    "client/consumer_options.py": "unit/client/test_options.py",
    "client/coordinator_lookup.py": "unit/client/admin/test_groups.py",
    "client/errors.py": "unit/test_public_names.py",
    "client/list_offsets.py": "unit/client/admin/test_offsets.py",
    "client/producer/produce_requests.py": "unit/client/producer/test_sender.py",
    "client/producer/producer.py": "integration/client/test_producer.py",
    "client/producer/producer_engine.py": "unit/client/producer/test_accumulator.py",
    "client/producer_options.py": "unit/client/test_options.py",
    "client/prometheus.py": "unit/client/test_metrics.py",
    "client/types.py": "unit/client/consumer/test_arguments.py",
    "config/accepted.py": "unit/config/test_kafka_settings.py",
    "config/broker.py": "unit/config/test_config.py",
    "config/cluster.py": "unit/config/test_config.py",
    "config/coordinators.py": "unit/config/test_config.py",
    "config/monitoring.py": "unit/config/test_config.py",
    "config/sources.py": "unit/config/test_config.py",
    "config/topic.py": "unit/config/test_config.py",
    "coordinator/groups/classic_group.py": "unit/coordinator/groups/test_joining.py",
    "coordinator/groups/classic_protocol.py": "unit/coordinator/groups/test_joining.py",
    "coordinator/groups/classic_members.py": "unit/coordinator/groups/test_group_migration.py",
    "coordinator/groups/consumer_group.py": (
        "unit/coordinator/groups/test_consumer_group_protocol.py"
    ),
    "coordinator/groups/reconciliation.py": (
        "unit/coordinator/groups/test_consumer_group_model.py"
    ),
    "coordinator/transactions/transaction_metadata.py": (
        "unit/coordinator/transactions/test_decisions.py"
    ),
    "metadata/feature_updates.py": "unit/metadata/test_features.py",
    "monitoring/cluster_status.py": "unit/monitoring/test_cluster_history.py",
    "pipelines/frames/decoding.py": "spark/test_frames_decoding.py",
    "pipelines/locations.py": "unit/pipelines/run/test_checkpoints.py",
    "pipelines/run/runner.py": "spark/test_pipeline_run.py",
    "pipelines/sinks/delta.py": "unit/pipelines/sinks/test_target.py",
    "pipelines/sinks/lake_files.py": "unit/pipelines/sinks/test_target.py",
    "pipelines/sinks/postgresql.py": "spark/test_sinks.py",
    "pipelines/sinks/sink_queries.py": "spark/test_sinks.py",
    "pipelines/sinks/topic.py": "spark/test_sinks_topic.py",
    "pipelines/datasource/brokers.py": "unit/pipelines/datasource/test_planner.py",
    "pipelines/datasource/delivery.py": "unit/pipelines/datasource/test_writer.py",
    "pipelines/spec/model.py": "unit/pipelines/spec/test_checks.py",
    "pipelines/spec/sections.py": "unit/pipelines/spec/test_yaml_file.py",
    "pipelines/spec/table.py": "unit/pipelines/spec/test_yaml_file.py",
    "protocol/column_decoder.py": "unit/protocol/test_columns.py",
    "protocol/column_encoder.py": "unit/protocol/test_columns.py",
    "protocol/message_codec.py": "unit/protocol/test_messages.py",
    "protocol/record_scan.py": "unit/protocol/test_records.py",
    "protocol/schema.py": "unit/protocol/test_messages.py",
    "raft/messages.py": "unit/broker/quorum/test_wire.py",
    "raft/quorum_state.py": "unit/raft/test_candidate_role.py",
    "raft/raft_node.py": "unit/raft/test_scenarios.py",
    "raft/replica_progress.py": "unit/raft/test_leader_role.py",
    "search/record_predicate.py": "unit/search/test_column_filter.py",
    "search/search_messages.py": "integration/test_search.py",
    "search/topic_search.py": "integration/test_search.py",
    "storage/compaction/batch_walk.py": "unit/storage/compaction/test_compaction.py",
    "storage/compaction/checksums.py": "unit/storage/compaction/test_key_table.py",
    "storage/compaction/output.py": "unit/storage/compaction/test_compaction.py",
    "storage/compaction/record_filter.py": "unit/storage/compaction/test_compaction.py",
    "storage/data_directory.py": "unit/storage/test_log_manager.py",
    "storage/future_log.py": "unit/storage/test_log_moves.py",
    "storage/log_segments.py": "unit/storage/test_retention.py",
    "storage/log_state.py": "unit/storage/test_log_threads.py",
    "storage/recovery_point.py": "unit/storage/test_damage.py",
    "storage/segment.py": "unit/storage/test_log.py",
    "testing/broker_requests.py": "unit/testing/test_cluster.py",
    "testing/plugin.py": "integration/testing/test_plugin.py",
    "testing/simulation/__main__.py": "the command line of `make sim`, which runs it",
    "testing/simulation/faults.py": "simulation/test_seeds.py",
    "testing/simulation/invariants.py": "simulation/test_planted.py",
    "testing/simulation/planted_bugs.py": "simulation/test_planted.py",
    "testing/simulation/run.py": "simulation/test_seeds.py",
    "testing/simulation/simulated_cluster.py": "simulation/test_failover.py",
    "testing/simulation/workload.py": "simulation/test_seeds.py",
}

GENERATED = {"build", "dist", "headrace-data", "__pycache__"}
HIDDEN_BUT_OURS = {".ci", ".github", ".gitignore", ".pre-commit-config.yaml"}
BINARY = {".bin", ".gz", ".png", ".so", ".zip", ".log", ".index", ".timeindex", ".snapshot"}

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
    """Every text file that a commit could contain."""
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

    A handler that ends by raising the caught exception cleans up and hides nothing.
    """

    def is_broad(kind: ast.expr | None) -> bool:
        if isinstance(kind, ast.Tuple):
            return any(is_broad(elt) for elt in kind.elts)
        return kind is None or (
            isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"}
        )

    handlers = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ExceptHandler))
    return [
        handler.lineno
        for handler in handlers
        if is_broad(handler.type) and ast.unparse(handler.body[-1]) != "raise"
    ]


def time_imports(source: str) -> list[int]:
    """Lines that import the module `time`, or names of it."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Import) and "time" in {alias.name for alias in node.names})
        or (isinstance(node, ast.ImportFrom) and node.module == "time")
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
    """Lines that read a timer's due time: uvloop's timers that are due at once have none."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr == "when"
    ]


def file_opens(source: str) -> list[int]:
    """Lines that open a file themselves: `open`, `os.open`, `Path.read_text` and the like."""
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


def nameless_loops(source: str) -> list[int]:
    """Lines with a loop or comprehension over `one`, which says nothing of the thing."""
    tree = ast.parse(source)
    loops = (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension))
    return [
        name.lineno
        for loop in loops
        for name in ast.walk(loop.target)
        if isinstance(name, ast.Name) and name.id == "one"
    ]


def class_names(source: str) -> list[str]:
    """The classes that a module defines, without the underscore of private ones."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return [node.name.lstrip("_") for node in classes]


def code_modules() -> list[Path]:
    """The modules that are neither a package's `__init__` nor a table of data."""
    paths = (path for path in python_modules() if path.name != "__init__.py")
    return [path for path in paths if not is_table(relative(path))]


def surface_of(name: str) -> str:
    """The surface that a module is part of, or nothing for modules with a common name space."""
    return next((surface for surface in SURFACES if name.startswith(surface)), "")


def listed_modules() -> list[str]:
    """The modules that docs/modules.md lists, as paths below the package."""
    text = (ROOT / "docs" / "modules.md").read_text()
    return re.findall(r"^- `([\w/]+\.py)`", text, re.MULTILINE)


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


def test_class_names_are_unique() -> None:
    """A name of two classes sends every second reader to the wrong one."""
    homes = defaultdict(list)
    for path in code_modules():
        for name in class_names(path.read_text()):
            homes[name].append(relative(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_loops_name_the_things_they_go_over() -> None:
    trees = (PACKAGE, *(ROOT / name for name in ("bench", "examples", "tests", "tools")))
    paths = [path for tree in trees for path in sorted(tree.rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): nameless_loops(path.read_text()) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_module_names_are_unique_or_told_apart_by_their_surface() -> None:
    """See SURFACES: elsewhere a name belongs to one module, or to a role in its package."""
    homes = defaultdict(list)
    for path in code_modules():
        if path.stem not in ROLE_MODULES and path.stem != "__main__":
            homes[surface_of(relative(path)), path.stem].append(relative(path))
    shared = {stem: modules for (_, stem), modules in homes.items() if len(modules) > 1}
    assert shared == {}


def test_unit_tests_mirror_the_modules() -> None:
    """A module's tests have its name and place, or TESTED_ELSEWHERE says where they are."""
    tests = ROOT / "tests"
    unmirrored = {
        relative(path)
        for path in code_modules()
        if len(path.read_text().splitlines()) > TESTED_LINES_MIN
        and not (tests / "unit" / relative(path)).with_name(f"test_{path.name}").exists()
    }
    assert unmirrored == set(TESTED_ELSEWHERE)
    files = [where for where in TESTED_ELSEWHERE.values() if where.endswith(".py")]
    assert [name for name in files if not (tests / name).exists()] == []


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


def test_clients_read_the_time_from_their_clock() -> None:
    """Use `Cluster.clock`; threads that wait in real time have one in client/blocking.py."""
    found = {relative(path): time_imports(path.read_text()) for path in python_modules()}
    assert [name for name in found if found[name] and name.startswith("client/")] == []


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


def test_page_of_modules_lists_every_module_once_and_nothing_else() -> None:
    assert sorted(listed_modules()) == sorted(map(relative, code_modules()))


def test_page_of_modules_says_what_the_modules_say_of_themselves() -> None:
    page = (ROOT / "docs" / "modules.md").read_text()
    assert modules_page(PACKAGE) == page, "run tools/make_file_map.py"


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


def test_the_page_about_authorization_has_the_rights_that_the_code_asks_for() -> None:
    page = make_authorization_table.PAGE.read_text()
    assert make_authorization_table.page() == page, "run tools/make_authorization_table.py"


def test_every_setting_is_documented() -> None:
    documented = set(re.findall(r"`([\w.]+)`", (ROOT / "docs" / "configuration.md").read_text()))
    assert {*BROKER_SETTINGS, *TOPIC_SETTINGS} - documented == set()


def test_every_core_is_bound_by_the_sans_io_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    [contract] = [contract for contract in contracts if contract["name"] == "cores are sans-I/O"]
    cores = {"coordinator", "metadata", "metrics", "protocol", "raft", "replication", "security"}
    present = {f"headrace.{name}" for name in cores if any((PACKAGE / name).glob("*.py"))}
    assert set(contract["source_modules"]) == present


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = {*project["dependencies"], *(entry for extra in extras for entry in extra)}
    names = {re.split(r"[<>=\[]", entry, maxsplit=1)[0].lower() for entry in wanted}
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
    assert class_names("class _A:\n    class B:\n        pass") == ["A", "B"]
    assert nameless_loops("for one in x: pass\n[a for a, one in x]\nfor a in one: pass") == [1, 2]
    assert surface_of("cli/log/dump.py") == "cli/"
    assert surface_of("storage/log.py") == ""
    assert timer_times("handle.when()\nwhen = 1") == [1]
    assert time_imports("import time\nfrom time import monotonic\nimport timeit") == [1, 2]
    assert UNFINISHED.search("# TO" + "DO: later")
    assert MACHINE_PATH.search("see /ho" + "me/someone/notes")
    assert not MACHINE_PATH.search("see docs/work/notes")
    assert REGISTRY.search("pip install --index-" + "url https://host/x")
