"""Ask ahead: what a hub that starts can do with a warm index, the list of the topics that were hot.

    file ──► topics ──► somebody is there, and nobody has come for a second ──► asked once, a few at a time

The bitmaps in the file are not read.  Connections get their ids from 0 in each process, in the order of their coming,
so bitmaps of another one mean nothing here; and those of this one would tell what SelectorIndex finds in the same time.

It gains little.  The first update on a topic finds its receivers in about half the time, some 15 µs less, which is what
writing to one of them takes; and whoever comes next undoes most of it, as an index looks for all receivers of a topic
again when there is a new one (bench/results/warm_index.json).  So it is for a hub whose subscribers come and stay;
where they come all the time, nothing is asked.  It costs pyarrow's 40 MB and half a second at the start.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from hub.broadcaster import TICK
from hub.errors import ConfigurationError
from skipfilter import warm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub.broadcaster import Broadcaster
    from hub.settings import Settings

log = structlog.stdlib.get_logger("hub")


def hot_topics(settings: Settings) -> list[str]:
    """The topics that were hottest, as many as are worth asking; none, and a warning, where the file is no good.

    Raises ConfigurationError where pyarrow is missing.
    """
    if not settings.warm_index:
        return []
    try:
        # What was asked once has a fifth of the cache.
        return warm.hot_topics(settings.warm_index, max(1, settings.cached_topics // 5))
    except ImportError:
        raise ConfigurationError("warm_index needs pyarrow: pip install skipfilter[parquet]") from None
    except ValueError as error:
        log.warning("the hub starts without its warm index", reason=str(error))
        return []


async def ask_ahead(broadcaster: Broadcaster, topics: Sequence[str]) -> None:
    """Have the receivers of `topics` remembered, once, as soon as it is quiet."""
    newest = None
    while newest is None or newest != broadcaster.newest:
        newest = broadcaster.newest
        await asyncio.sleep(TICK)
    await broadcaster.look_up(topics, private=True)
    log.info("asked ahead", topics=len(topics))
