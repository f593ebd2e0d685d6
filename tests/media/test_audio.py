"""Audio files, written by soundfile and Python's `wave`, against what others decode from them."""

import io
import pickle
import wave
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace import MapDataset, audio, sources, storage
from headrace.__main__ import main
from headrace.errors import DataError, PipelineError
from headrace.sources import AudioDataSource, DecodeSample, write_tar
from headrace.testing import assert_equal, assert_resumable

soundfile = pytest.importorskip("soundfile")
RATE = 8000


def noise(seconds=2.0, channels=2, rate=RATE, seed=0):
    """Samples that 16 bits hold exactly."""
    numbers = np.random.default_rng(seed).integers(-(2**14), 2**14, (round(seconds * rate), channels))
    return numbers.astype(np.float32) / 2**15


def encoded(samples, kind="WAV", rate=RATE, **options):
    content = io.BytesIO()
    soundfile.write(content, samples, rate, format=kind, **options)
    return content.getvalue()


def tone(rate, seconds=1.0, hertz=440.0):
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes, one of WAV and one of FLAC files."""
    root = tmp_path_factory.mktemp("audio")
    for kind in ("wav", "flac"):
        (root / kind).mkdir()
        for i in range(3):
            (root / kind / f"{i}.{kind}").write_bytes(encoded(noise(1 + i, seed=i), kind.upper()))
    (root / "wav" / "notes.txt").write_text("not audio")
    return root


# ----------------------------------------------------------------------------------------------- sources


def test_folders_are_classes_and_elements_are_paths(folder):
    source = sources.open(folder)
    assert isinstance(source, AudioDataSource)
    assert source.class_names == ["flac", "wav"]
    paths = [str(folder / kind / f"{i}.{kind}") for kind in ("flac", "wav") for i in range(3)]
    assert list(source) == [{"audio": path, "label": i // 3} for i, path in enumerate(paths)]
    assert source.paths == paths
    assert source[-1] == pickle.loads(pickle.dumps(source))[5]
    assert source.__where__(2) == (paths[2], None)
    assert repr(source).endswith("num_files=6, num_classes=2)")
    with pytest.raises(IndexError, match="Index 6 is out of range for 6 files"):
        source[6]
    assert AudioDataSource(folder, flat=True)[0] == {"audio": paths[0]}


def test_files_and_patterns_have_no_classes(folder, tmp_path):
    found = sources.open(folder / "wav" / "*.wav")
    assert [element["audio"] for element in found] == [str(folder / "wav" / f"{i}.wav") for i in range(3)]
    assert list(sources.open(folder / "flac")) == list(sources.open(str(folder / "flac" / "{0..2}.flac")))
    assert sources.open(folder / "wav" / "0.wav").element_spec.keys() == {"audio"}
    with pytest.raises(PipelineError, match="`flat=False` needs a folder"):
        AudioDataSource(folder / "wav" / "0.wav", flat=False)
    with pytest.raises(FileNotFoundError, match="No file matches "):
        AudioDataSource(folder / "nothing.wav")
    with pytest.raises(
        PipelineError, match=r"There is no audio file under .*: none of its files ends in \.wav, \.flac"
    ):
        AudioDataSource(tmp_path)


def test_elements_may_have_the_bytes_of_files(folder):
    source = sources.open(folder, contents=True)
    assert source[1] == {"audio": (folder / "flac" / "1.flac").read_bytes(), "label": 0}
    assert "contents=True" in repr(source)


def test_recordings_that_are_converted_are_whole_files(folder, tmp_path):
    assert main(["convert", str(folder), str(tmp_path / "a.tfrecord"), "--quiet"]) == 0
    found = sources.open(tmp_path / "a.tfrecord", parse_examples=True)
    assert_equal(list(found), list(sources.open(folder, contents=True)))


def test_a_file_with_the_suffix_of_another_format_is_an_error(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"no audio at all" * 50)
    with pytest.raises(DataError, match=r"a\.wav does not start as audio files do"):
        sources.open(tmp_path / "a.wav")


# ---------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("channels", [1, 2])
def test_wav_is_what_pythons_own_module_reads(tmp_path, channels):
    path = tmp_path / "a.wav"
    path.write_bytes(encoded(noise(channels=channels), subtype="PCM_16"))
    with wave.open(str(path)) as file:
        theirs = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, channels) / np.float32(2**15)
        assert file.getframerate() == RATE
    found = audio.Decode().map({"audio": str(path), "label": 3})
    assert_equal(found, {"audio": theirs, "label": 3, "sampling_rate": RATE})


def test_flac_is_what_pyav_decodes(tmp_path):
    av = pytest.importorskip("av")
    samples = noise(channels=2)
    (tmp_path / "a.flac").write_bytes(encoded(samples, "FLAC", subtype="PCM_16"))
    with av.open(str(tmp_path / "a.flac")) as container:
        theirs = np.concatenate([frame.to_ndarray().reshape(-1, 2) for frame in container.decode(audio=0)])
    found = audio.Decode().map(str(tmp_path / "a.flac"))
    assert_equal(found, (theirs / np.float32(2**15)).astype(np.float32))
    assert_equal(found, samples)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_clip_is_a_part_of_the_whole(kind):
    content = encoded(noise(3.0), kind)
    whole = audio.Decode().map(content)
    for start, duration in ((0.0, 1.0), (0.3, 0.5), (1.23456, 0.1), (2.5, None), (2.5, 10.0), (0.0, 1e-4)):
        first = round(start * RATE)
        count = len(whole) if duration is None else round(duration * RATE)
        assert_equal(audio.Decode(start=start, duration=duration).map(content), whole[first : first + count])


def test_only_the_clip_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.wav"
    path.write_bytes(encoded(noise(100.0)))
    read = []
    monkeypatch.setattr(
        "headrace.storage.files.LocalFile.read",
        lambda self, offset, length, read_all=storage.files.LocalFile.read: (
            read.append(length) or read_all(self, offset, length)
        ),
    )
    assert len(audio.Decode(start=50.0, duration=0.5).map(str(path))) == RATE / 2
    assert 0 < sum(read) < path.stat().st_size / 10


@pytest.mark.parametrize("rate", [16_000, 4000, 11_025, 44_100])
def test_resampled_audio_is_the_same_sound(rate):
    content = encoded(tone(RATE), "FLAC")
    found = audio.Decode(rate, mono=True).map({"audio": content})
    assert found["sampling_rate"] == rate
    assert found["audio"].dtype == np.float32
    assert abs(len(found["audio"]) - rate) <= 1
    inside = slice(rate // 10, -rate // 10)  # where the sound begins and ends, filters see silence
    np.testing.assert_allclose(found["audio"][inside], tone(rate)[: len(found["audio"])][inside], atol=2e-3)


@pytest.mark.parametrize("rate", [16_000, 6000, 11_025, 44_100])
def test_a_resampled_clip_is_a_part_of_the_resampled_whole(rate):
    content = encoded(noise(3.0, rate=22_050), rate=22_050)
    whole = audio.Decode(rate).map(content)
    for start, duration in ((0.0, 1.0), (0.31, 0.5), (1.23456, 0.1), (2.9, None)):
        clip = audio.Decode(rate, start=start, duration=duration).map(content)
        first = round(start * rate)
        assert len(clip) == (len(whole) - first if duration is None else round(duration * rate))
        np.testing.assert_allclose(clip, whole[first : first + len(clip)], atol=1e-5)


def test_mono_is_the_mean_of_the_channels():
    samples = noise(channels=3)
    found = audio.Decode(mono=True).map(encoded(samples))
    np.testing.assert_allclose(found, samples.mean(axis=1), atol=1e-6)
    assert found.shape == (len(samples),)
    assert_equal(audio.Decode(mono=True).map(encoded(samples[:, :1])), samples[:, 0])


def test_times_may_be_fields_of_elements(folder):
    path = str(folder / "wav" / "2.wav")
    whole = audio.Decode().map(path)
    decode = audio.Decode(start="begin", duration="length")
    found = decode.map({"audio": path, "begin": np.float32(0.5), "length": 1})
    assert_equal(found["audio"], whole[RATE // 2 : RATE // 2 + RATE])
    with pytest.raises(
        PipelineError, match=r"has no field 'length' for the time of a clip; it has \['audio', 'begin'\]"
    ):
        decode.map({"audio": path, "begin": 1})
    with pytest.raises(PipelineError, match="`start` of a clip must be a number of seconds from 0; got 'soon'"):
        decode.map({"audio": path, "begin": "soon", "length": 1})


def test_random_clips_come_from_the_generator_of_the_element(folder):
    ds = MapDataset.source(sources.open(folder)).random_map(audio.RandomClip(0.5, mono=True), seed=4)
    assert [len(element["audio"]) for element in ds] == [RATE // 2] * 6
    assert_equal(list(ds), list(ds))
    assert not np.array_equal(ds[0]["audio"], ds[6]["audio"])  # of the next epoch
    whole, clip = audio.Decode(mono=True).map(sources.open(folder)[5])["audio"], ds[5]["audio"]
    assert any(np.array_equal(whole[i : i + len(clip)], clip) for i in range(len(whole) - len(clip) + 1))
    assert len(audio.RandomClip(60.0).random_map(str(folder / "wav" / "0.wav"), np.random.default_rng(0))) == RATE


@pytest.mark.parametrize("rate", [None, RATE, RATE // 2, 11_025])
@pytest.mark.parametrize("mono", [False, True])
def test_silence_follows_short_audio_with_pad(tmp_path, rate, mono):
    for name, count in (("a", RATE // 3), ("b", 3 * RATE)):
        soundfile.write(tmp_path / f"{name}.wav", np.full(count, 0.5), RATE)
    files = [{"audio": str(tmp_path / "a.wav")}, {"audio": str(tmp_path / "b.wav")}]
    ds = MapDataset.source(files).random_map(audio.RandomClip(1.25, sampling_rate=rate, mono=mono, pad=True), seed=1)
    (batch,) = ds.batch(2)
    assert batch["audio"].shape == (2, round(1.25 * (rate or RATE)), *[1] * (not mono))
    whole = audio.Decode(rate, mono=mono).map(files[0])["audio"]
    assert_equal(batch["audio"][0][: len(whole)], whole)
    assert not batch["audio"][0][len(whole) :].any()
    assert_equal(audio.Decode(rate, mono=mono, duration=1.25, pad=True).map(files[0])["audio"], batch["audio"][0])
    with pytest.raises(PipelineError, match="it needs `duration`"):
        audio.Decode(rate, pad=True)


def test_elements_may_be_tuples_lists_and_bytes(folder):
    path = str(folder / "wav" / "0.wav")
    samples = audio.Decode().map(path)
    assert_equal(audio.Decode().map((path, 5)), (samples, 5))
    assert_equal(audio.Decode().map([path, 5]), [samples, 5])
    with open(path, "rb") as file:
        content = file.read()
    for given in (content, bytearray(content), memoryview(content), np.frombuffer(content, np.uint8)):
        assert_equal(audio.Decode(key="a").map({"a": given})["a"], samples)
    assert_equal(audio.Decode().map(folder / "wav" / "0.wav"), samples)


def test_streams_are_the_same_with_workers_and_resume(folder):
    ds = (
        MapDataset.source(sources.open(folder))
        .shuffle(seed=1)
        .map(audio.Decode(16_000, mono=True, start=0.2, duration=0.5))
    )
    ds = ds.to_iter_dataset().batch(2)
    expected = list(ds)
    assert expected[0]["audio"].shape == (2, 8000)
    assert_equal(list(ds.mp_prefetch(2)), expected)
    assert_resumable(ds)
    assert ds.element_spec["audio"].shape == (None, None)


def test_decoded_audio_can_be_cached_until_a_file_changes(tmp_path):
    path = tmp_path / "a.wav"
    for seed in range(2):
        path.write_bytes(encoded(noise(1 + seed, seed=seed)))
        for _ in range(2):
            ds = MapDataset.source(sources.open(path)).map(audio.Decode()).cache(tmp_path / "cache")
            assert_equal([element["audio"] for element in ds], [noise(1 + seed, seed=seed)])


def test_audio_in_tar_files(tmp_path):
    samples = [noise(0.5, 1, seed=i) for i in range(4)]
    (path,) = write_tar([{"flac": encoded(one, "FLAC"), "cls": i} for i, one in enumerate(samples)], tmp_path / "a.tar")
    ds = MapDataset.source(sources.open(path)).map(DecodeSample()).map(audio.Decode(key="flac"))
    assert_equal([element["flac"] for element in ds], samples)


def test_the_length_of_a_file(folder):
    assert audio.seconds_of(str(folder / "flac" / "2.flac")) == 3.0


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_files_that_are_cut_off_are_errors_that_name_them(tmp_path, kind):
    content = encoded(noise(5.0), kind)
    path = tmp_path / f"a.{kind.lower()}"
    for cut in (0, 10, len(content) // 3, len(content) * 9 // 10):
        path.write_bytes(content[:cut])
        if kind == "OGG" and cut > 10:
            continue  # its last whole page is its end
        with pytest.raises(DataError, match=f"a.{kind.lower()} does not decode as audio: .*Is the file truncated"):
            audio.Decode().map(str(path))


def test_damaged_samples_of_flac_are_errors(tmp_path):
    content = bytearray(encoded(noise(), "FLAC"))
    content[len(content) // 2] ^= 1
    with pytest.raises(DataError, match="The audio does not decode as audio"):
        audio.Decode().map(bytes(content))


def test_a_wav_file_of_a_program_that_did_not_know_its_size_is_read():
    content = bytearray(encoded(noise(), subtype="PCM_16"))
    at = content.index(b"data") + 4
    content[at : at + 4] = b"\xff" * 4
    assert_equal(audio.Decode().map(bytes(content)), noise())


def test_a_clip_after_the_end_is_an_error(folder):
    path = str(folder / "wav" / "0.wav")
    for decode in (audio.Decode(start=1.0), audio.Decode(16_000, start=9.0, duration=1.0)):
        with pytest.raises(DataError, match=r"0\.wav is 1 s long, but the clip starts at (1|9) s"):
            decode.map(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start": -1}, "`start` of a clip must be a number of seconds from 0; got -1"),
        ({"duration": 0}, "`duration` of a clip must be a number of seconds above 0; got 0"),
        ({"duration": float("nan")}, "`duration` of a clip"),
        ({"start": [1]}, r"`start` of a clip must be a number of seconds from 0; got \[1\]"),
        ({"sampling_rate": 0}, "sampling_rate"),
    ],
)
def test_arguments_that_make_no_sense(options, said):
    with pytest.raises(PipelineError, match=said):
        audio.Decode(**options)


def test_what_is_not_audio_is_an_error():
    with pytest.raises(
        PipelineError, match="The audio of an element must be the path of a file or its bytes; got int: 3"
    ):
        audio.Decode().map({"audio": 3})
    with pytest.raises(PipelineError, match=r"The element has no audio under 'audio'; it has \['x'\]"):
        audio.Decode().map({"x": 3})
    with pytest.raises(PipelineError, match="The audio is already decoded"):
        audio.Decode().map(np.zeros(3, np.float32))
    with pytest.raises(FileNotFoundError, match="nothing.wav"):
        audio.Decode().map("nothing.wav")


def test_bad_files_are_left_out(tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.wav").write_bytes(encoded(noise(0.1)) if i != 2 else encoded(noise())[:100])
    ds = (
        MapDataset.source(sources.open(tmp_path)).map(audio.Decode()).on_error("skip", max_ratio=None).to_iter_dataset()
    )
    with iter(ds) as iterator:
        assert len(list(iterator)) == 3
        assert iterator.stats().bad_records["count"] == 1


def test_doctor_decodes_every_file(folder, tmp_path, capsys):
    assert main(["doctor", str(folder), "--quiet"]) == 0
    flipped = bytearray(encoded(noise(), "FLAC"))
    flipped[len(flipped) // 2] ^= 1
    contents = {"a.flac": encoded(noise(), "FLAC"), "b.flac": flipped, "c.wav": encoded(noise())[:-9], "d.mp3": b"ID3"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    found = headrace.verify(tmp_path)
    assert [Path(damage.file).name for damage in found.damaged] == ["b.flac", "c.wav", "d.mp3"]
    assert found.num_records == 1


def test_operations_say_how_they_decode():
    assert repr(audio.Decode(16_000, mono=True, start=1.5)) == "Decode(start=1.5, sampling_rate=16000, mono=True)"
    assert repr(audio.RandomClip(2.0, key="x")) == "RandomClip(duration=2.0, key='x')"
