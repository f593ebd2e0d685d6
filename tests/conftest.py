"""Settings that all tests share."""

import os
import threading
import time

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
settings.register_profile("thorough", deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """No test leaves a thread of the library behind."""
    yield
    for _ in range(100):
        left = [t.name for t in threading.enumerate() if t.name.startswith("headrace")]
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(f"threads left: {left}")
