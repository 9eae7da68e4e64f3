"""Gauges: the metrics that the parts of a hub know, at the time of a question.

Belongs here: where each of them is found.  Does not belong here: counts of events
(`hub.metrics.recorder`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from hub.errors import HistoryUnavailable
from hub.metrics.catalogue import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hub.hub import Hub
    from hub.server.open_connections import Connections

HISTORY_SECONDS: Final = 0.4
"""Seconds that the history has to report its size, and again to report its health."""


async def gauges(hub: Hub, connections: Connections | None) -> Mapping[tuple[str, str], float]:
    """Return numbers of the catalogue, by metric and value of its label.

    `connections` are those of the hub's own protocol; None if another server has them.
    If the history does not answer in time, its numbers are left out.
    """
    delivery, authorizer = hub.delivery, hub.authorizer
    audience = delivery.audience.stats()
    tokens, token_bytes = authorizer.cached
    numbers: dict[tuple[str, str], float] = {
        ("hub_streams_live", ""): delivery.live_count,
        ("hub_updates_in_flight", ""): hub.window.in_flight,
        ("hub_cache_lookups_total", "topics"): delivery.audience.lookups,
        ("hub_cache_misses_total", "topics"): audience.misses,
        ("hub_cache_entries", "topics"): audience.keys,
        ("hub_cache_bytes", "topics"): audience.cache_bytes,
        ("hub_cache_lookups_total", "tokens"): authorizer.lookups,
        ("hub_cache_misses_total", "tokens"): authorizer.misses,
        ("hub_cache_entries", "tokens"): tokens,
        ("hub_cache_bytes", "tokens"): token_bytes,
    }
    for bound in BOUNDS:
        share = getattr(hub.shares, bound)
        numbers["hub_bound_used", bound], numbers["hub_bound_limit", bound] = share.used, share.bound
    if connections is not None:
        streams = max(0, delivery.connection_count - hub.shares.readers.used)
        numbers["hub_connections_without_stream", ""] = max(0, connections.open - streams)
        numbers["hub_connections_cut_total", ""] = connections.cut
    numbers["hub_processes_ready", ""] = 0
    with contextlib.suppress(TimeoutError):
        numbers["hub_processes_ready", ""] = await asyncio.wait_for(hub.health.check(), HISTORY_SECONDS) is None
    numbers["hub_follower_seconds_behind", ""] = hub.health.behind
    with contextlib.suppress(HistoryUnavailable, TimeoutError):
        stats = await asyncio.wait_for(hub.history.stats(), HISTORY_SECONDS)
        numbers["hub_history_updates", ""], numbers["hub_history_bytes", ""] = stats.updates, stats.bytes
    return numbers
