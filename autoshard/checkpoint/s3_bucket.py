"""One S3 bucket through boto3: requests that are tried again, and errors of one line. Needs the extra `s3`.

Where requests go and with whose keys is boto3's own configuration: AWS_ENDPOINT_URL, AWS_PROFILE, a role, and so on.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from autoshard.checkpoint.store import PlaceError
from autoshard.errors import AutoshardError

ATTEMPTS = 8
"""Tries of each request, with exponential backoff and jitter (botocore's standard mode): they outlast 500s of half a
minute on average. AWS_MAX_ATTEMPTS takes precedence."""
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 60.0
"""botocore's own are 60 s each; a guess that a connection which takes 10 s will not come."""
PART_BYTES = 16 * 1024 * 1024
PARTS_AT_A_TIME = 4
"""A file goes up in parts; host memory of a save is bounded by so many, beside the copy of the state."""
MOST_PARTS = 10_000
"""S3's own limit."""
BROKEN_ANSWERS = 3
"""Tries of a request whose answer breaks off: a pause of about _PAUSE_S seconds after the first, twice that later."""
_PAUSE_S = 0.5
_CHUNK_BYTES = 1 << 22
_DELETED_AT_ONCE = 1000
_CLIENT_ERRORS = {"NoSuchKey": "is missing", "404": "is missing", "NoSuchBucket": "there is no such bucket"}


def s3_client(read_timeout_s: float = READ_TIMEOUT_S) -> Any:
    """A boto3 client for S3. read_timeout_s: seconds to wait for an answer.

    Raises AutoshardError where boto3 is not installed or cannot be set up.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise AutoshardError("checkpoints in s3:// need boto3: pip install 'autoshard[s3]'") from None
    attempts = {} if "AWS_MAX_ATTEMPTS" in os.environ else {"total_max_attempts": ATTEMPTS}
    config = Config(
        retries={"mode": "standard", **attempts},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=read_timeout_s,
        max_pool_connections=2 * PARTS_AT_A_TIME,
    )
    with errors_of("s3"):
        return boto3.session.Session().client("s3", config=config)


@contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Turn boto3's errors inside the context into an S3Error of one line that starts with `where`."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        answer = error.response.get("Error", {})
        code = str(answer.get("Code", ""))
        reason = _CLIENT_ERRORS.get(code) or f"S3 answers {code}: {answer.get('Message', '')}".rstrip(": ")
        raise S3Error(_line(where, reason), code) from None
    except (BotoCoreError, OSError) as error:
        raise S3Error(_line(where, f"S3 cannot be used: {error}"), "") from None


class S3Error(PlaceError):
    """A request to S3 failed. code: S3's name of the error, "" if there was no answer."""

    def __init__(self, text: str, code: str):
        super().__init__(text)
        self.code = code


def _line(where: str, reason: str) -> str:
    return " ".join(f"{where} {reason}" if reason == "is missing" else f"{where}: {reason}".split())


@dataclass(frozen=True)
class Bucket:
    """One bucket by name. Every method raises S3Error."""

    name: str
    client: Any

    def url(self, key: str) -> str:
        return f"s3://{self.name}/{key}"

    def size(self, key: str) -> int:
        with errors_of(self.url(key)):
            return int(self.client.head_object(Bucket=self.name, Key=key)["ContentLength"])

    def get(self, key: str, start: int, stop: int, attempts: int = BROKEN_ANSWERS) -> bytes:
        """Bytes [start, stop) of an object.

        boto3 tries requests again, but not an answer that breaks off: that is done here, `attempts` times in all.
        """
        if start == stop:
            return b""
        try:
            return self._get(key, start, stop)
        except S3Error as error:
            if error.code or attempts == 1:
                raise
        time.sleep(_PAUSE_S * (0.5 + random.random()) * 2 ** (BROKEN_ANSWERS - attempts))  # noqa: S311  no secret
        return self.get(key, start, stop, attempts - 1)

    def _get(self, key: str, start: int, stop: int) -> bytes:
        with errors_of(self.url(key)):
            answer = self.client.get_object(Bucket=self.name, Key=key, Range=f"bytes={start}-{stop - 1}")
            data: bytes = answer["Body"].read()
        if len(data) != stop - start:
            raise S3Error(f"{self.url(key)} has {len(data):,} of the {stop - start:,} bytes from {start:,} on", "")
        return data

    def chunks(self, key: str, size: int) -> Iterator[bytes]:
        """The bytes of an object of `size` bytes, in chunks.

        Each is a request of its own: one that fails is tried again alone.
        """
        for start in range(0, size, _CHUNK_BYTES):
            yield self.get(key, start, min(size, start + _CHUNK_BYTES))

    def put(self, key: str, data: bytes, **conditions: str) -> str:
        """Write an object, and return its ETag."""
        with errors_of(self.url(key)):
            return str(self.client.put_object(Bucket=self.name, Key=key, Body=data, **conditions)["ETag"])

    def put_large(self, key: str, chunks: Iterable[memoryview], size: int) -> None:
        """Write an object of `size` bytes from its chunks. None of it is seen before all of it is there."""
        part_bytes = max(PART_BYTES, -(-size // MOST_PARTS))
        if size <= part_bytes:
            self.put(key, b"".join(chunks))
            return
        with errors_of(self.url(key)):
            upload = self.client.create_multipart_upload(Bucket=self.name, Key=key)["UploadId"]
            try:
                parts = self._upload(key, upload, _regrouped(chunks, part_bytes))
                self.client.complete_multipart_upload(
                    Bucket=self.name, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
                )
            except BaseException:
                with suppress(Exception):  # what went wrong first is what there is to say
                    self.client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload)
                raise

    def _upload(self, key: str, upload: str, parts: Iterable[bytes]) -> list[dict[str, Any]]:
        def send(number: int, data: bytes) -> dict[str, Any]:
            answer = self.client.upload_part(Bucket=self.name, Key=key, UploadId=upload, PartNumber=number, Body=data)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        sent: list[Future[dict[str, Any]]] = []
        with ThreadPoolExecutor(PARTS_AT_A_TIME) as pool:
            for number, data in enumerate(parts, 1):
                if number > PARTS_AT_A_TIME:
                    sent[number - 1 - PARTS_AT_A_TIME].result()
                sent.append(pool.submit(send, number, data))
            return [one.result() for one in sent]

    def keys(self, prefix: str) -> dict[str, int]:
        """Size in bytes of every object whose key starts with the prefix, by key."""
        with errors_of(self.url(prefix)):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
            return {one["Key"]: int(one["Size"]) for page in pages for one in page.get("Contents", ())}

    def folders(self, prefix: str) -> list[str]:
        """The names that come between the prefix and the next slash in any key."""
        with errors_of(self.url(prefix)):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.name, Prefix=prefix, Delimiter="/"
            )
            prefixes = [one["Prefix"] for page in pages for one in page.get("CommonPrefixes", ())]
        return [one[len(prefix) :].rstrip("/") for one in prefixes]

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[start : start + _DELETED_AT_ONCE]
            with errors_of(self.url(some[0])):
                answer = self.client.delete_objects(
                    Bucket=self.name, Delete={"Objects": [{"Key": key} for key in some], "Quiet": True}
                )
            for failed in answer.get("Errors", ()):
                raise S3Error(f"{self.url(failed['Key'])} cannot be deleted: {failed.get('Code')}", failed.get("Code"))

    def copy(self, key: str, to: str) -> None:
        """Copy an object inside S3; no byte comes to this machine."""
        with errors_of(self.url(key)):
            self.client.copy({"Bucket": self.name, "Key": key}, self.name, to)

    def abort_uploads(self, prefix: str) -> None:
        """Delete unfinished uploads under a prefix, left by killed processes: S3 would keep and charge their unseen
        parts.
        """
        with errors_of(self.url(prefix)):
            pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self.name, Prefix=prefix)
            for upload in [one for page in pages for one in page.get("Uploads", ())]:
                self.client.abort_multipart_upload(Bucket=self.name, Key=upload["Key"], UploadId=upload["UploadId"])


def _regrouped(chunks: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of `size` bytes; the last one may be smaller."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk
        while len(waiting) >= size:
            yield bytes(memoryview(waiting)[:size])
            waiting = waiting[size:]
    if waiting:
        yield bytes(waiting)
