"""Strict interpretation of obstore's errors.

obstore reports a status, but not always the reason, and the reason decides: a 404 may mean that the
object is missing, that the bucket is missing, or that a web server answers in place of the storage.
Only the first says that the object is absent (F10). The reason is in the response body, which
obstore includes in the text of its error. If the reason cannot be read there, the call failed; it
never counts as absence.
"""

from __future__ import annotations

import re
from typing import Literal

Scheme = Literal["s3", "gs", "az"]


class Answer:
    """The status and reason of an obstore error, and the text to show to a user."""

    def __init__(self, error: Exception | None) -> None:
        # Only the first part is meant for people; the rest is Rust debug output.
        self.text, _, self._details = str(error).partition("\n\nDebug source:")
        status = _STATUS.search(self.text)
        code = _CODE.search(self.text)
        self.status = int(status[1]) if status else None
        self.code = code[1] if code else None

    @property
    def absent(self) -> bool:
        """Whether the storage says that the object is missing, and so that the bucket exists."""
        # Azure deletes in batches, and each part of a batch has its own status.
        return self.code in _NO_OBJECT or "Bulk delete request failed for key" in self.text

    @property
    def undecided(self) -> bool:
        """Whether S3 gave up on a race without naming a winner."""
        return self.code in _UNDECIDED

    @property
    def lasting(self) -> bool:
        """Whether the storage refuses the request permanently, as opposed to an outage."""
        return (
            self.status in (301, 307, 400, 401, 403, 404)
            or self.code in _NO_BUCKET + _WRONG_REGION + _WRONG_TOKEN
            or "configured region" in self.text
            or "builder error" in self.text
            or bool(_LOGIN.search(self.text))
        ) and self.code not in _PASSING

    @property
    def cause(self) -> str:
        """The cause in one line, without query strings, which may contain a signature."""
        if status := _STATUS.search(self.text):
            message = _MESSAGE.search(self.text)
            parts = [status[0].strip(), self.code, message and message[1]]
            return ": ".join(part for part in parts if part)
        words = _QUERY.sub("", " ".join(self.text.split()))[:300]
        detail = _DETAIL.search(self._details)
        return f"{words}: {detail[1] or 'timed out'}" if detail else words

    def hint(self, scheme: Scheme, bucket: str) -> str | None:
        """Advice on what to check."""
        variables = VARIABLES[scheme]
        if self.code in _NO_BUCKET:
            return f"create the bucket {bucket!r}, or correct its name"
        if self.status == 404:
            return "this is not the answer of an object store: check the endpoint"
        if "configured region" in self.text or self.code in _WRONG_REGION:
            return f"check the region of the bucket {bucket!r}: AWS_REGION"
        if self.code == "RequestTimeTooSkewed":
            return "set the clock of this machine"
        if self.status in (401, 403) or self.code in _WRONG_TOKEN:
            return (
                f"check the credentials ({variables}); they must allow reading, writing, listing "
                f"and deleting"
            )
        if _LOGIN.search(self.text):
            return f"no credentials were found: set {variables}"
        if "builder error" in self.text:
            return "the endpoint is not https: set AWS_ALLOW_HTTP=true if that is what you want"
        if "HTTP error" in self.text:
            return f"check the network and the endpoint ({variables})"
        if self.text.startswith("Encountered object with invalid path"):
            return "remove that object: Stepwell did not create it and cannot list around it"
        return None


VARIABLES: dict[Scheme, str] = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}
"""The variables from which obstore reads credentials and endpoints, for hints."""

_NO_OBJECT = ("NoSuchKey", "BlobNotFound")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_UNDECIDED = ("ConditionalRequestConflict", "OperationAborted")
_PASSING = ("RequestTimeout", "SlowDown", "ServerBusy", "OperationTimedOut")
"""Codes of transient errors that come with a permanent-looking status; a retry succeeds."""
_WRONG_REGION = ("AuthorizationHeaderMalformed", "PermanentRedirect")
_WRONG_TOKEN = ("ExpiredToken", "InvalidToken")
_STATUS = re.compile(r"(?<=status code: )(\d{3})[^:<]*")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_DETAIL = re.compile(r'message: "([^"]+)"|TimedOut')
_QUERY = re.compile(r"\?\S*")
_LOGIN = re.compile(r"/latest/(api|meta-data)|computeMetadata|metadata/identity|token request")
