"""Fixtures that tests of several formats share."""

import pytest

from headrace.sources import array_record, record_files


@pytest.fixture(params=["one by one", "all cores", "slow"])
def read_by(request, monkeypatch):
    """The ways in which a file of records is read, each of which a machine or a file may never take."""
    monkeypatch.setattr(array_record, "num_cores", lambda: 1 if request.param == "one by one" else 2)
    monkeypatch.setattr(array_record, "FEWEST_AT_ONCE", 2)
    monkeypatch.setattr(record_files, "SLOW_RECORD_S", -1 if request.param == "slow" else 1e9)
    monkeypatch.setattr(record_files, "SLOW_IN_A_ROW", 1)


@pytest.fixture
def far_away(tmp_path, monkeypatch):
    """A folder behind an address, `memory://records`, and an empty cache."""
    fs = pytest.importorskip("fsspec").filesystem("memory")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    yield fs
    fs.rm("/records", recursive=True)
