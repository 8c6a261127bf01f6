"""What a session is given on which master, without starting one."""

import os
import sys
from pathlib import Path

import pytest

from headrace.pipelines.session import prepare_environment, session_settings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests set does not reach others."""
    monkeypatch.setattr("headrace.pipelines.java.java_version", lambda java: 17)
    monkeypatch.setenv("JAVA_HOME", "jdk")
    monkeypatch.setenv("PATH", "somewhere")
    # Set first, so that it is restored whatever becomes of it.
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")


def test_settings_for_one_machine_are_left_out_on_a_cluster() -> None:
    for master in ("local", "local[*]", "local-cluster[2,1,1024]"):
        assert session_settings(master)["spark.driver.host"] == "127.0.0.1"
    for master in ("spark://host:7077", "yarn", "k8s://https://host:6443"):
        settings = session_settings(master)
        assert settings["spark.sql.python.filterPushdown.enabled"] == "true"
        assert not [name for name in settings if name.startswith("spark.driver")]
        assert "spark.ui.enabled" not in settings


def test_workers_of_this_machine_run_the_python_of_this_process() -> None:
    prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PATH"] == "somewhere"


def test_workers_elsewhere_run_the_python_of_the_same_version_on_their_path() -> None:
    prepare_environment(elsewhere=True)
    assert os.environ["PYSPARK_PYTHON"] == f"python3.{sys.version_info.minor}"
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}somewhere"


def test_what_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    prepare_environment(elsewhere=True)
    assert (os.environ["PYSPARK_PYTHON"], os.environ["PATH"]) == ("mine", "somewhere")
