"""Settings that all tests share."""

import os
import threading
import time

import pytest
from hypothesis import HealthCheck, settings

from headrace._plan.streams import GapFound
from headrace.errors import HeadraceError
from headrace.iterator import _Walk

settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
settings.register_profile("thorough", deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def no_mistake_is_hidden(monkeypatch):
    """After any error an iterator walks carefully, which would hide a mistake of the library's own: it only is slow."""
    hidden = []
    next_rows = _Walk._next_rows

    def watched(walk):
        try:
            return next_rows(walk)
        except (HeadraceError, GapFound):
            raise
        except Exception as e:
            if not hasattr(e, "__notes__"):  # which errors of users' functions have
                hidden.append(e)
            raise

    monkeypatch.setattr(_Walk, "_next_rows", watched)
    yield
    assert not hidden


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
