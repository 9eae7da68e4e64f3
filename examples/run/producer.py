"""One run: a process that asks the model, and publishes each token.

python producer.py URL RUN, with the key in the variable RUN_KEY
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from hub import SyncClient
from hub.auth.signing import sign_classic_token
from hub.client import Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "A roaring bitmap keeps a set of numbers in little memory, and joins two sets quickly."


def tokens() -> Iterator[str]:
    """Yield the tokens of a model, which is a fake one here."""
    for word in TEXT.split(" "):
        time.sleep(float(os.environ.get("RUN_TOKEN_SECONDS", "0.4")))
        yield word + " "


def publish(hub: SyncClient, topic: str, data: dict[str, Any], type: str) -> None:
    """Publish an event; try again for up to a minute.

    The id is always the same, so that the hub leaves out a repeated one.
    """
    give_up = time.monotonic() + 60
    while True:
        try:
            hub.publish(topic, data=data, id=f"urn:{topic}:{data['n']}", type=type, private=True)
        except (Unreachable, Refused) as error:  # a worker may have died after it took the event
            passes = not isinstance(error, Refused) or error.may_pass
            if not passes or time.monotonic() > give_up:
                raise
            time.sleep(0.2)
        else:
            return


def main(url: str, run: str) -> None:
    topic = f"/runs/{run}"
    token = sign_classic_token(os.environ["RUN_KEY"], publish=[topic], seconds=3_600)
    with SyncClient(url, token=token, timeout=5) as hub:
        number = 0
        for number, text in enumerate(tokens(), 1):
            publish(hub, topic, {"n": number, "text": text}, "token")
        publish(hub, topic, {"n": number + 1}, "done")


if __name__ == "__main__":
    main(*sys.argv[1:])
