"""Statistics for TensorBoard, Weights & Biases, Prometheus and profilers, and Grain's debug settings."""

import gzip
import logging
import re
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from headrace import DatasetOptions, MapDataset, MultiprocessingOptions, ReadOptions, config, exporters
from headrace.engine.workers import Profiled
from headrace.errors import PipelineError
from headrace.experimental import ExecutionTrackingMode

INLINE = ReadOptions(num_threads=0)


def halve(x):
    return np.full(100, x / 2)


def small(count=1000):
    return MapDataset.range(count).map(halve).batch(4).to_iter_dataset(INLINE)


def read_all(iterator):
    with iterator:
        return sum(1 for _ in iterator)


# ------------------------------------------------------------------------------------- log_to


def test_a_function_gets_numbers():
    told = []
    assert read_all(iter(small()).log_to(told.append, every_s=0.0)) == 250
    assert len(told) >= 2  # at the first outputs, and at the end
    last = told[-1]
    assert last["headrace/elements"] == 250
    assert last["headrace/elements_per_second"] > 0
    assert all(isinstance(value, float) and name.startswith("headrace/") for name, value in last.items())
    assert any("batch(4) by consumer/busy" in name for name in last)


def test_every_few_seconds_and_at_the_end():
    told = []
    read_all(iter(small()).log_to(told.append, every_s=1000))
    assert len(told) == 2


def test_tensorboard_and_wandb(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        read_all(iter(small()).log_to(writer))
    found = event_accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    assert found.Scalars("headrace/elements")[-1].value == found.Scalars("headrace/elements")[-1].step == 250

    class Run:
        """As that of Weights & Biases: `log` takes a dict."""

        def log(self, data):
            self.data = data

    run = Run()
    read_all(iter(small()).log_to(run))
    assert run.data["headrace/elements"] == 250


def test_an_error_of_the_target_does_not_end_the_stream(caplog):
    def fails(numbers):
        raise OSError("no space left")

    assert read_all(iter(small()).log_to(fails, every_s=0.0)) == 250
    assert [record.getMessage() for record in caplog.records] == [
        "Stopped exporting statistics: OSError: no space left"
    ]


def test_targets_that_are_none():
    with iter(small()) as iterator, pytest.raises(PipelineError, match="`log_to` takes .*; got int"):
        iterator.log_to(3)


def test_prometheus():
    pytest.importorskip("prometheus_client")
    endpoint = exporters.Prometheus(port=0)
    try:
        read_all(iter(small()).log_to(endpoint))
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        assert "headrace_elements_total 250.0" in lines
        assert any(line.startswith("headrace_operation_seconds_total{") and "map(halve" in line for line in lines)
        assert any(line.startswith("headrace_stage_busy_seconds_total{by=") for line in lines)
    finally:
        endpoint.close()


def test_prometheus_in_a_registry_of_ones_own():
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    endpoint = exporters.Prometheus(registry=registry)
    read_all(iter(small()).log_to(endpoint))
    assert registry.get_sample_value("headrace_elements_total") == 250
    endpoint.close()
    assert registry.get_sample_value("headrace_elements_total") is None


# ------------------------------------------------------------------------------------- profilers


def test_traces_of_jax(tmp_path):
    jax = pytest.importorskip("jax")
    with jax.profiler.trace(str(tmp_path)), exporters.annotations("jax"):
        read_all(iter(small(40)))
    traces = [path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file()]
    traces += [gzip.decompress(trace) for trace in traces if trace[:2] == b"\x1f\x8b"]
    assert any(b"headrace: map(halve at test_exporters.py" in trace for trace in traces)


def test_traces_of_torch():
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        read_all(iter(small(8)))
        with exporters.annotations("torch"):
            read_all(iter(small(40)))
    names = {event.key: event.count for event in profiler.key_averages()}
    (count,) = [count for name, count in names.items() if name.startswith("headrace: map(halve at test_exporters.py")]
    assert count >= 1


def test_other_profilers():
    with pytest.raises(PipelineError, match="got 'perf'"), exporters.annotations("perf"):
        pass


# ------------------------------------------------------------------------------------- Grain's settings


def test_stage_timing_measures_everything(monkeypatch):
    monkeypatch.setattr("headrace.ops.recorder.MOST_COST", 1e-9)  # measured only once otherwise
    options = DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.STAGE_TIMING)
    times = []
    for ds in (small(), small().with_options(options)):
        with iter(ds) as iterator:
            for _ in iterator:
                pass
            outputs = iterator._iteration.recorder.outputs
            times.append(outputs.profile() is not None)
    assert times == [False, True]


def test_debug_mode_logs_statistics_and_writes_reports(tmp_path, caplog):
    pytest.importorskip("jinja2")
    config.update("py_debug_mode", True)
    config.update("py_dataset_visualization_output_dir", str(tmp_path / "reports"))
    try:
        with caplog.at_level(logging.INFO, "headrace"):
            read_all(iter(small()))
    finally:
        config.update("py_debug_mode", False)
        config.update("py_dataset_visualization_output_dir", None)
    assert "250 elements" in caplog.records[-1].getMessage()
    assert "map(halve" in caplog.records[-1].getMessage()
    (report,) = (tmp_path / "reports").iterdir()
    assert "map(halve" in report.read_text()
    caplog.clear()
    read_all(iter(small()))
    assert not caplog.records


def busy(x):
    until = time.monotonic() + 0.005
    while time.monotonic() < until:
        pass
    return x


def test_traces_of_workers(tmp_path, capfd):
    pytest.importorskip("jax")
    client = pytest.importorskip("tensorflow").profiler.experimental.client
    options = MultiprocessingOptions(1, enable_profiling=True)
    ds = MapDataset.range(10**6).map(busy).to_iter_dataset().mp_prefetch(options)
    with iter(ds) as iterator:
        next(iterator)
        address = re.search(r"Worker 0 \(process \d+\) can be profiled at (localhost:\d+)", capfd.readouterr().err)
        tracing = threading.Thread(target=client.trace, args=(f"grpc://{address[1]}", str(tmp_path), 300))
        tracing.start()
        while tracing.is_alive():
            next(iterator)
    traces = [path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert any(b"headrace: map(busy at test_exporters.py" in trace for trace in traces)


def test_without_jax_workers_are_not_profiled(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "jax", None)
    seen = []
    Profiled(lambda *args: seen.append(args))(0, 1)
    assert seen == [(0, 1)]
    assert "enable_profiling=True has no effect: `jax`" in caplog.text
