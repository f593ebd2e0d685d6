"""The code of the README and of the documents on sources, text, images, audio and video runs as it stands."""

import re
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run_blocks(document):
    for code in re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL):
        exec(compile(code, document, "exec"), {})


def test_the_first_screen_runs(capsys):
    run_blocks("README.md")
    assert capsys.readouterr().out == "(128, 28, 28)\n" * 2


@pytest.mark.xdist_group("ray")
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_a_pipeline_runs_on_ray(capsys):
    pytest.importorskip("ray")
    run_blocks("docs/cluster.md")
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("[")


def test_texts_become_packed_batches(capsys, monkeypatch, tmp_path):
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_blocks("docs/text.md")
    out = "{'tokens': (8, 128), 'tokens_positions': (8, 128), 'tokens_segment_ids': (8, 128)}\n"
    assert capsys.readouterr().out == out


def test_images_become_batches(capsys, monkeypatch, tmp_path):
    pytest.importorskip("cv2")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_blocks("docs/images.md")
    assert capsys.readouterr().out == "(16, 224, 224, 3) uint8 (16, 2)\n(16, 224, 224, 3) float32\n"


def test_splits_are_read_and_what_is_written_is_read_back(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run_blocks("docs/sources.md")
    assert capsys.readouterr().out == "8 [8, 9, 103, 104]\n6 2\n(28, 28) uint8 (0, 4) a (28, 28)\n"


def test_audio_and_video_are_decoded_as_the_document_says(capsys, monkeypatch, tmp_path):
    pytest.importorskip("av")
    pytest.importorskip("soundfile")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_blocks("docs/media.md")
    assert capsys.readouterr().out == "(8000,) float32 16000 1\n(8, 24, 32, 3) uint8\n"
