"""Push: sends updates to a hub from a job; blocks, and retries for a while.

Push.publish  ─► POST of JSON lines, or of a form for each update if need be
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import httpx2

from hub.client.messages import IDENTITY, longest_answer, read, retry_after
from hub.spark.errors import NotTaken
from hub.spark.retry import PASSING, Attempts, reason_of, said

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hub.client.messages import Answer
    from hub.spark.options import SparkOptions


# -- publishing


class Push:
    """Publishes updates over one connection, many in a request if the hub accepts that.

    `most` is the maximum number of updates in a request, which the hub may lower.
    """

    def __init__(self, connection: SparkOptions, *, most: int) -> None:
        self._connection = connection
        self._client = connection.open()
        self._attempts = Attempts(connection.url, connection.retries)
        self.most = most
        self.takes_lines = True  # whether it accepts several updates in a request

    def publish(self, lines: Sequence[bytes]) -> None:
        """Publish updates, each a JSON object, in order.

        Raises NotTaken with the hub's reason and the index of the first update that it
        refuses.  The updates of one request are published all or none.
        """
        done = 0
        while done < len(lines):
            part = lines[done : done + self.most]
            if not self.takes_lines:
                self._publish_one(part[0], done)
                done += 1
                continue
            answer = self._post(b"\n".join(part), b"application/x-ndjson")
            if answer.status == 200:
                done += len(part)
            elif answer.status == 413 and len(part) > 1:
                self.most = len(part) // 2  # this hub accepts fewer
            elif answer.status in (400, 415) and _NUMBER.match(said(answer)) is None:
                # 400 or 415 without the number of a line: another hub, which expected a
                # form; or this hub, and the only line is invalid.  A form shows which.
                self._publish_one(part[0], done)
                self.takes_lines = False
                done += 1
            else:
                raise _not_taken(answer, done)

    def _publish_one(self, line: bytes, index: int) -> None:
        """Publish one update as a form."""
        answer = self._post(as_form(json.loads(line)), b"application/x-www-form-urlencoded")
        if answer.status != 200:
            raise _not_taken(answer, index)

    def _post(self, body: bytes, type: bytes) -> Answer:
        """Send a request until it has an answer that is not temporary."""
        while True:
            try:
                headers = [(b"Content-Type", type), IDENTITY, *self._connection.headers()]
                with self._client.stream("POST", self._connection.url, content=body, headers=headers) as response:
                    answer = read(response, longest_answer(body))
            except httpx2.TransportError as error:
                reason, wait = reason_of(error), 0.0
            else:
                if answer.status not in PASSING:
                    self._attempts.succeeded()
                    return answer
                reason, wait = f"{answer.status}: {said(answer)}", retry_after(answer.headers)
            self._attempts.failed(reason, wait)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


_NUMBER: Final = re.compile(r"update (\d+): ")
"""The beginning of this hub's reason if one of many lines is invalid."""


def _not_taken(answer: Answer, before: int) -> NotTaken:
    """Return the error for a response; `before` updates were published already."""
    text = said(answer)
    found = _NUMBER.match(text)
    index = before + int(found[1]) - 1 if found else None if answer.status in (401, 403) else before
    return NotTaken(answer.status, text[found.end() :] if found else text, index)


def as_form(update: Mapping[str, Any]) -> bytes:
    """Return an update as a form (N40–N54)."""
    fields = [("topic", topic) for topic in update["topic"]]
    fields += [(name, str(update[name])) for name in ("data", "id", "type", "retry") if update.get(name) is not None]
    if update.get("private"):
        fields.append(("private", "on"))
    return str(httpx2.QueryParams(fields)).encode("ascii")
