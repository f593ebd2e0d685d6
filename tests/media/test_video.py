"""Videos that PyAV writes: their frames are those that were written, or what OpenCV decodes."""

from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace import MapDataset, sources, video
from headrace.errors import DataError, PipelineError
from headrace.sources import VideoDataSource
from headrace.testing import assert_equal, assert_resumable

av = pytest.importorskip("av")
HEIGHT, WIDTH, FPS = 48, 64, 25
LOSSLESS = {"mkv": ("ffv1", "bgr0"), "mov": ("qtrle", "rgb24")}
LOSSY = {"mp4": ("libx264", "yuv420p"), "webm": ("libvpx-vp9", "yuv420p"), "avi": ("mpeg4", "yuv420p")}


def frame(i):
    """A picture that tells the number of its frame: a grey level, and a pattern."""
    made = np.full((HEIGHT, WIDTH, 3), i % 250, np.uint8)
    made[: HEIGHT // 2, : WIDTH // 2] = np.random.default_rng(i).integers(0, 255, 3)
    return made


def write(path, count=100, kind=None, *, key_every=10, times=None, fps=FPS):
    """Writes a video whose frame `i` is `frame(i)`, at `times[i]` in ticks of a frame."""
    codec, pixels = (LOSSLESS | LOSSY)[kind or str(path).rpartition(".")[2]]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, pixels
        stream.options = {"g": str(key_every)}
        for i in range(count):
            picture = av.VideoFrame.from_ndarray(frame(i), format="rgb24")
            picture.pts = i if times is None else times[i]
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return str(path)


def numbers(found):
    """The numbers of frames, by their grey level."""
    return found[:, -1, -1, 0].tolist()


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    for kind in LOSSLESS | LOSSY:
        write(root / f"a.{kind}")
    return root


# ----------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("kind", LOSSLESS)
def test_all_frames_are_those_that_were_written(videos, kind):
    found = video.Decode().map({"video": str(videos / f"a.{kind}"), "label": 1})
    assert_equal(found, {"video": np.stack([frame(i) for i in range(100)]), "label": 1})


@pytest.mark.parametrize("kind", LOSSY)
def test_frames_are_those_that_opencv_decodes(videos, kind):
    cv2 = pytest.importorskip("cv2")
    capture = cv2.VideoCapture(str(videos / f"a.{kind}"))
    theirs = []
    while True:
        there, picture = capture.read()
        if not there:
            break
        theirs.append(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))
    found = video.Decode().map(str(videos / f"a.{kind}"))
    assert found.shape == (100, HEIGHT, WIDTH, 3)
    np.testing.assert_allclose(found.astype(int), np.stack(theirs).astype(int), atol=3)  # they round colours otherwise


@pytest.mark.parametrize("kind", LOSSLESS | LOSSY)
def test_a_clip_is_a_part_of_the_whole(videos, kind):
    path = str(videos / f"a.{kind}")
    whole = video.Decode().map(path)
    for start, duration in (
        (0.0, 1.0),
        (1.0, 0.4),
        (0.12, 0.04),
        (3.5, None),
        (3.5, 100.0),
        (0.5 - 1e-9, 0.2),
        (2.21, 1.0),
    ):
        first = int(np.ceil(start * FPS - 1e-3))
        stop = 100 if duration is None else min(100, int(np.ceil((start + duration) * FPS - 1e-3)))
        assert_equal(video.Decode(start=start, duration=duration).map(path), whole[first:stop])


@pytest.mark.parametrize("kind", LOSSLESS)
def test_some_frames_of_many(videos, kind):
    path = str(videos / f"a.{kind}")
    assert numbers(video.Decode(frames=4).map(path)) == [12, 37, 62, 87]  # in the middle of each quarter
    assert numbers(video.Decode(1, start=1.0, duration=1.0).map(path)) == [37]
    assert numbers(video.Decode(4, start=3.0, duration=9.0).map(path)) == [78, 84, 90, 96]
    assert numbers(video.Decode(fps=2).map(path)) == [0, 12, 25, 37, 50, 62, 75, 87]
    assert numbers(video.Decode(fps=FPS).map(path)) == list(range(100))
    assert numbers(video.Decode(fps=50, start=1.0, duration=0.1).map(path)) == [25, 25, 26, 26, 27]
    assert numbers(video.Decode(frames=200).map(path)) == [i // 2 for i in range(200)]
    assert numbers(video.Decode(fps=0.1, start=1.0).map(path)) == [25]


def test_frames_that_are_far_apart_are_reached_from_key_frames(tmp_path, monkeypatch):
    path = write(tmp_path / "a.mkv", 2000, key_every=25)
    decoded = []
    seen = video.decode.Video._time_of
    monkeypatch.setattr(video.decode.Video, "_time_of", lambda self, one: decoded.append(one.pts) or seen(self, one))
    assert numbers(video.Decode(frames=4).map(path)) == [i % 250 for i in (250, 750, 1250, 1750)]
    assert 0 < len(decoded) < 300
    decoded.clear()
    assert numbers(video.Decode(start=60.0, duration=0.2).map(path)) == [i % 250 for i in range(1500, 1505)]
    assert 0 < len(decoded) < 100


def test_few_key_frames_are_no_trouble(tmp_path):
    path = write(tmp_path / "a.mp4", 500, key_every=1000)
    whole = numbers(video.Decode().map(path))
    for count in (3, 7, 40):
        times = [(i + 0.5) * 20.0 / count for i in range(count)]
        assert numbers(video.Decode(frames=count).map(path)) == [whole[int(time * FPS + 1e-6)] for time in times]


def test_frames_that_last_longer_than_others(tmp_path):
    path = write(tmp_path / "a.mkv", 5, times=[0, 1, 2, 27, 52])
    assert numbers(video.Decode().map(path)) == [0, 1, 2, 3, 4]
    assert numbers(video.Decode(fps=2, duration=2.0).map(path)) == [0, 2, 2, 3]
    assert numbers(video.Decode(start=0.5, duration=1.0).map(path)) == [3]


def test_sizes_are_height_and_width(videos):
    found = video.Decode(frames=3, size=(24, 40)).map(str(videos / "a.mkv"))
    assert found.shape == (3, 24, 40, 3)
    assert numbers(found) == [16, 50, 83]


def test_bytes_tuples_and_fields(videos):
    path = videos / "a.mkv"
    expected = video.Decode(start=1.0, duration=0.2).map(str(path))
    decode = video.Decode(start="from", duration="for", key="clip")
    assert_equal(decode.map({"clip": path.read_bytes(), "from": 1, "for": 0.2})["clip"], expected)
    assert_equal(video.Decode(start=1.0, duration=0.2).map((path, 7)), (expected, 7))
    assert video.seconds_of(path) == pytest.approx(4.0)


def test_random_clips_come_from_the_generator_of_the_element(videos):
    ds = (
        MapDataset.source(VideoDataSource(videos / "a.mkv"))
        .random_map(video.RandomClip(0.4, frames=3), seed=3)
        .repeat(4)
    )
    found = [numbers(element["video"]) for element in ds]
    assert found == [numbers(element["video"]) for element in ds]
    assert len(set(map(tuple, found))) > 1
    assert all(last - first in (6, 7) for first, _, last in found)
    whole = video.RandomClip(60.0, frames=2).random_map(str(videos / "a.mkv"), np.random.default_rng(0))
    assert numbers(whole) == [25, 75]


# ------------------------------------------------------------------------------------------------ sources


def test_folders_of_videos(tmp_path):
    for i in range(4):
        (tmp_path / f"class-{i % 2}").mkdir(exist_ok=True)
        write(tmp_path / f"class-{i % 2}" / f"{i}.mp4", 10)
    source = sources.open(tmp_path)
    assert isinstance(source, VideoDataSource)
    assert [(element["video"][-5:], element["label"]) for element in source] == [
        ("0.mp4", 0),
        ("2.mp4", 0),
        ("1.mp4", 1),
        ("3.mp4", 1),
    ]
    assert len(sources.open(tmp_path / "class-0" / "*.mp4")) == 2
    (tmp_path / "a.wav").write_bytes(b"RIFF....WAVE")
    with pytest.raises(DataError, match="is a folder with audio and video. Name the one to read with `format`"):
        sources.open(tmp_path)
    assert len(sources.open(tmp_path, format="video")) == 4


def test_streams_are_the_same_with_workers_and_resume(videos):
    paths = sorted(str(path) for path in videos.iterdir())
    ds = MapDataset.source(VideoDataSource(paths)).shuffle(seed=1).map(video.Decode(frames=4, size=(24, 32), start=0.5))
    assert ds.element_spec["video"].shape == (4, 24, 32, 3)
    ds = ds.to_iter_dataset().batch(2)
    expected = list(ds)
    assert expected[0]["video"].shape == (2, 4, 24, 32, 3)
    assert_equal(list(ds.mp_prefetch(2)), expected)
    assert_resumable(ds)


# ------------------------------------------------------------------------------------------------- errors


def test_files_that_are_cut_off_are_errors_that_name_them(tmp_path):
    for kind in ("mp4", "mov", "mkv"):
        path = tmp_path / f"a.{kind}"
        write(path, 100)
        content = path.read_bytes()
        for cut in (0, 10, len(content) // 3):
            path.write_bytes(content[:cut])
            with pytest.raises(DataError, match=rf"a\.{kind} (does not decode as video|ends after|has no)"):
                video.Decode().map(str(path))


def test_a_video_without_its_end_is_an_error(tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for i in range(200):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame(i), format="rgb24")))
        container.mux(stream.encode(None))
    whole = path.read_bytes()
    assert whole.index(b"moov") < whole.index(b"mdat")
    cut = whole[: whole.index(b"mdat") + (len(whole) - whole.index(b"mdat")) // 2]
    for decode in (video.Decode(), video.Decode(frames=8), video.Decode(fps=1, start=1.0)):
        with pytest.raises(DataError, match="The video (ends after|does not decode|has no frame)"):
            decode.map(cut)
    assert len(video.Decode(duration=1.0).map(cut)) == FPS  # what is there can be read


def test_what_has_no_video_is_an_error(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(str(tmp_path / "a.ogg"), np.zeros(8000), 8000)
    for content in ((tmp_path / "a.ogg").read_bytes(), b"no video" * 100, b""):
        with pytest.raises(DataError, match="The video (contains no video|does not decode as video)"):
            video.Decode().map(content)


def test_a_file_cannot_make_others_be_read(tmp_path, videos):
    """Playlists name files and addresses, which a decoder would open."""
    other = videos / "a.mp4"
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n{other}\n#EXT-X-ENDLIST\n"
    concat = f"ffconcat version 1.0\nfile {other}\n"
    for i, text in enumerate((playlist, concat)):
        path = tmp_path / f"{i}.mp4"
        path.write_text(text)
        with pytest.raises(DataError, match="does not decode as video"):
            video.Decode().map(str(path))


def test_doctor_decodes_every_file(tmp_path):
    write(tmp_path / "a.mp4", 100)
    write(tmp_path / "b.mkv", 100)
    (tmp_path / "c.mp4").write_bytes((tmp_path / "a.mp4").read_bytes()[:900])
    found = headrace.verify(tmp_path)
    assert [Path(damage.file).name for damage in found.damaged] == ["c.mp4"]
    assert found.num_records == 2


def test_a_clip_after_the_end_is_an_error(videos):
    for decode in (video.Decode(start=4.0), video.Decode(3, start=9.0)):
        with pytest.raises(DataError, match=r"a\.mp4 is 4 s long, but the clip starts at (4|9) s"):
            decode.map(str(videos / "a.mp4"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frames": 0}, "frames"),
        ({"fps": 0}, "`fps` must be a positive number of frames per second; got 0"),
        ({"frames": 3, "fps": 2}, "Pass either `frames`"),
        ({"size": (0, 3)}, "size"),
        ({"duration": -1}, "`duration` of a clip must be a number of seconds above 0; got -1"),
    ],
)
def test_arguments_that_make_no_sense(options, said):
    with pytest.raises(PipelineError, match=said):
        video.Decode(**options)


def test_what_is_not_a_video_is_an_error():
    with pytest.raises(
        PipelineError, match="The video of an element must be the path of a file or its bytes; got int: 3"
    ):
        video.Decode().map({"video": 3})
    with pytest.raises(PipelineError, match=r"The element has no video under 'video'; it has \['x'\]"):
        video.Decode().map({"x": 3})
    with pytest.raises(FileNotFoundError, match=r"nothing\.mp4"):
        video.Decode().map("nothing.mp4")


def test_operations_say_how_they_decode():
    assert repr(video.Decode(8, start="s", size=(2, 3))) == "Decode(start='s', frames=8, size=(2, 3))"
    assert repr(video.RandomClip(2.0, fps=4)) == "RandomClip(duration=2.0, fps=4)"
