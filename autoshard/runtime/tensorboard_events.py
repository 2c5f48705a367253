"""Writes scalars in TensorBoard's event file format, without TensorBoard.

The format is small (TFRecords of protobuf messages). Writing it here keeps tensorboard, protobuf and torch out of the
supervising process, and a full disk is reported where it happens and not in a thread. TFRecord: length (uint64), masked
CRC-32C of it, data, masked CRC-32C of the data; all little-endian (tensorflow/core/lib/io/record_writer.h). Messages:
tensorflow/core/util/event.proto and framework/summary.proto.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path


class EventFile:
    """One events.out.tfevents file in `directory`. Raises OSError as files do."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        now_s = time.time()
        self.path = directory / f"events.out.tfevents.{now_s:.6f}.{socket.gethostname()}"
        self._file = self.path.open("wb", buffering=0)
        try:
            self._write(_double(1, now_s) + _bytes(3, b"brain.Event:2"))
        except OSError:
            self._file.close()
            raise

    def add_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        values = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in scalars.items())
        self._write(_double(1, time.time()) + _integer(2, step) + _bytes(5, values))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        record = memoryview(length + _masked_crc(length) + event + _masked_crc(event))
        while record:
            record = record[self._file.write(record) :]


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        return _varint(field << 3 | 5) + struct.pack("<f", value)
    except OverflowError:  # beyond float32: 1e39
        return _varint(field << 3 | 5) + struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # the Castagnoli polynomial, reflected
        table.append(byte)
    return tuple(table)


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The CRC-32C of the data (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
