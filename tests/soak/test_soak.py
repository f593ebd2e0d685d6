"""The soak for half a minute, and that it fails if a pipeline does."""

import os
import re
import subprocess
import sys

import pytest

from tests.soak.pipelines import PIPELINES
from tests.soak.track import ROOT

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("shared memory"),  # of which the names are the whole machine's
]


def soak(*arguments):
    command = [sys.executable, "-m", "tests.soak", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.slow
def test_every_pipeline_survives_faults():
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    status, output = soak("--minutes", "0.5")
    assert status == 0, output
    for name in PIPELINES:
        outputs, faults = re.search(rf"^{name}: ([\d,]+) outputs, ([\d,]+) faults survived$", output, re.M).groups()
        assert int(outputs.replace(",", "")) >= 12, output
        assert int(faults.replace(",", "")) >= 1, output
    assert len(re.findall(r"^  consumer +\d+.\d → +\d+.\d MB [▁▂▃▄▅▆▇█]+$", output, re.M)) == len(PIPELINES)
    assert re.search(r"^passed; seed 0$", output, re.M)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("lost", r"index \(steady\): lost: in place of output 4 came output 5$"),
        ("repeated", r"index \(steady\): repeated: in place of output 5 came output 4$"),
        ("different", r"index \(steady\): different: output 4 is not what it must be$"),
        ("hidden", r"index \(steady\): an error that .*ValueError\('of the library'\)$"),
        ("memory", r"index: the memory of the consumer grew from \d+.\d to \d+.\d MB$"),
        ("descriptors", r"index: the descriptors of the consumer grew from \d+ to \d\d+$"),
        ("left", r"left: temporary file \w+$"),
        ("hang", r"index \(steady\): hang: for 10.0 s nothing came after an output was asked for;"),
    ],
)
def test_what_a_broken_pipeline_does_is_a_failure(broken, reason):
    if broken in ("memory", "descriptors") and os.environ.get("HYPOTHESIS_PROFILE") == "quick":
        pytest.skip("takes a minute")
    status, output = soak("--minutes", "0.1", "--only", "index", "--break", broken)
    assert status == 1
    assert re.search(f"^FAILED: {reason}", output, re.M), output
