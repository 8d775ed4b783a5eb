"""Reading a recorded stream, whole and damaged."""

import gzip
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest

from flushtracker.errors import ConfigError, DecodeError
from flushtracker.trials.recordings.recording import RecordedMessage, read_recording
from tests.support.recording_file import encode_recording

RECORDING = Path(__file__).parents[2] / "recording"
FRAMES = [
    RecordedMessage(1, 2, b"first"),
    RecordedMessage(0, 0, b"R" * 300),
    RecordedMessage(2**64 - 1, 2**64 - 1, b""),
]


def test_the_recording_is_read_to_its_end() -> None:
    """Every frame, in the order the server sent them."""
    frames = list(read_recording(RECORDING))
    assert len(frames) == 6926
    assert sum(20 + len(frame.data) for frame in frames) == 2_205_741
    starts = [frame.wal_start for frame in frames if frame.data[:1] == b"B"]
    assert starts == sorted(starts)
    assert len(starts) == 369


@pytest.mark.parametrize(("name", "compress"), [("frames.bin", bytes), ("frames.bin.gz", gzip.compress)])
def test_a_recording_is_found_by_its_name_or_by_its_directory(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes]
) -> None:
    """Plain or compressed alike."""
    (tmp_path / name).write_bytes(compress(encode_recording(FRAMES)))
    assert list(read_recording(tmp_path)) == FRAMES
    assert list(read_recording(tmp_path / name)) == FRAMES


def test_a_missing_recording_is_reported_at_once_with_the_paths_tried(tmp_path: Path) -> None:
    """On the call, not when the first frame is read."""
    with pytest.raises(ConfigError) as caught:
        read_recording(tmp_path)
    for tried in (tmp_path, tmp_path / "frames.bin.gz", tmp_path / "frames.bin"):
        assert f" {tried} " in str(caught.value)


def test_a_recording_that_cannot_be_opened_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing permission is simulated, as tests may run as root."""
    file = tmp_path / "frames.bin"
    file.write_bytes(encode_recording(FRAMES))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"frames\.bin cannot be opened: Permission denied"):
        list(read_recording(file))


def frames_until_damage(file: Path) -> tuple[list[RecordedMessage], str]:
    frames = []
    reader = read_recording(file)
    with pytest.raises(DecodeError) as caught:  # noqa: PT012  # what was read before is part of the answer
        while True:
            frames.append(next(reader))
    return frames, str(caught.value)


def test_a_recording_cut_off_anywhere_is_an_error_after_the_frames_before(tmp_path: Path) -> None:
    """Cut between two frames it is a shorter recording; anywhere else, the error has the file and the byte."""
    file = tmp_path / "frames.bin"
    data = encode_recording(FRAMES)
    ends = {len(encode_recording(FRAMES[:count])): count for count in (1, 2, 3)}
    for length in range(len(data)):
        file.write_bytes(data[:length])
        if length in ends:
            assert list(read_recording(file)) == FRAMES[: ends[length]]
            continue
        frames, message = frames_until_damage(file)
        assert frames == FRAMES[: sum(end <= length for end in ends)]
        start = len(encode_recording(frames))
        position = start if length < start + 20 else start + 20
        assert message.startswith(f"recording {file}: byte {position} should start a ")


def test_a_compressed_recording_cut_off_anywhere_is_an_error(tmp_path: Path) -> None:
    """The compressed data ends with a checksum, so even a cut between frames is noticed."""
    file = tmp_path / "frames.bin.gz"
    data = gzip.compress(encode_recording(FRAMES))
    for length in range(len(data)):
        file.write_bytes(data[:length])
        _, message = frames_until_damage(file)
        assert message.startswith(f"recording {file}: byte ")


@pytest.mark.parametrize("position", range(0, 60, 3))
def test_a_damaged_compressed_recording_never_raises_a_gzip_error(tmp_path: Path, position: int) -> None:
    """Some header bytes mean nothing to the reader; any other damage is a DecodeError with the file's name."""
    file = tmp_path / "frames.bin.gz"
    data = bytearray(gzip.compress(encode_recording(FRAMES), mtime=0))
    at = position % len(data)
    data[at] ^= 0xFF
    file.write_bytes(data)
    if 4 <= at < 10:
        assert list(read_recording(file)) == FRAMES
    else:
        assert str(file) in frames_until_damage(file)[1]


def test_bytes_after_the_compressed_data_are_an_error(tmp_path: Path) -> None:
    """They are no part of the recording, and what they are is unknown."""
    file = tmp_path / "frames.bin.gz"
    file.write_bytes(gzip.compress(encode_recording(FRAMES)) + b"more")
    frames, message = frames_until_damage(file)
    assert frames == FRAMES
    assert (
        f"byte {len(encode_recording(FRAMES))} should start a frame's header of 20 bytes, found damaged compression"
        in message
    )


def test_a_length_that_no_message_has_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """PostgreSQL's messages are below 1 GiB; a damaged length must not make the reader request 4 GiB."""
    file = tmp_path / "frames.bin"
    file.write_bytes(encode_recording(FRAMES[:1]) + pack(">QQI", 0, 0, 2**32 - 1) + b"data")
    frames, message = frames_until_damage(file)
    assert frames == FRAMES[:1]
    assert "byte 41 should start a length of at most 1073741823, found 4294967295" in message


@pytest.mark.parametrize("name", ["frames.bin", "frames.bin.gz"])
def test_an_empty_recording_is_an_error(tmp_path: Path, name: str) -> None:
    """Nothing was recorded, or the file was cut off at its start: replaying it would prove nothing."""
    (tmp_path / name).write_bytes(b"")
    frames, message = frames_until_damage(tmp_path)
    assert frames == []
    assert "byte 0 should start a frame's header, found the end" in message
