"""The history in Redis or Valkey, for nodes on many machines: a stream, and what finds and forgets its entries.

    history      RedisHistory: what `hub.history.base.History` promises, and what a node knows of the epoch
      ├► scripts     loads begin.lua and, after it, one of the other texts: one script is one step
      └► url         the client of a URL

The keys:

    {mercure}:log              stream      4-0 -> time, update    5-0 -> ...    6-0 -> ...        entry n has the id n-0
    {mercure}:ids              sorted set  "a 4 time"  "b 5 time"  "a 6 time"     find("a") is the first that begins so
    {mercure}:marks            sorted set  "4 time size a"  "5 time size b"  ...  what retention asks, by n
    {mercure}:presence         stream      the same of the entries about presence, which have numbers of the same row
    {mercure}:presence-marks   sorted set
    {mercure}:meta             hash        epoch, since, end; of each kind bytes, and what was forgotten last
    {mercure}:seen             sorted set  hashes of ids that are remembered, with their publishers, by time
    {mercure}:nodes            set         the names of nodes
    {mercure}:alive:<node>     string      expires `node_timeout` seconds after the node's last beat
    {mercure}:present:<node>   hash        id -> matchers of who is present on it

All that is asked or changed is one Lua script, so an update, its index and who is present never differ.  Positions n
count from 1, whatever the clock says, and entries of both kinds in one row; one node's positions are its offset + n.

Redis Cluster is not supported: by the name in braces all keys would be on one of its nodes, and nobody looks for which.
"""

from __future__ import annotations

from hub.errors import ConfigurationError

try:
    import redis.asyncio  # noqa: F401
except ImportError:
    raise ConfigurationError("a history_url of redis needs its client: pip install skipfilter[redis]") from None
