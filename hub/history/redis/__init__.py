"""A history in Redis or Valkey, for nodes on many machines: streams, and their indexes.

    history      RedisHistory: the contract of `hub.history.base`, and the epochs
      ├► scripts     makes each script of begin.lua and one other text
      └► url         the client of a URL

The keys, which all begin with {mercure}:

    log             stream      4-0 -> time, update  5-0 -> ...  entry n has the id n-0
    ids             sorted set  "a 4 time"  "b 5 time"  ...  find("a"): the first of a
    marks           sorted set  "4 time size a"  "5 time size b"  ...  for retention
    presence        stream      the same of presence updates, numbered in the same order
    presence-marks  sorted set
    meta            hash        epoch, since, end; of each kind bytes, newest forgotten
    seen            sorted set  hashes of remembered ids and publishers, by time
    nodes           set         names of nodes
    alive:<node>    string      expires `node_timeout` after the node's last beat
    present:<node>  hash        id -> matchers of each subscriber on it

Every read and change is one Lua script, so an update, its index and the list of those
present never differ.  Numbers n count from 1, whatever the clock says, for entries of
both kinds together; a position of a node is its offset + n.

Redis Cluster is not supported: the braces would put all keys on one of its nodes, and
the client does not look for that node.
"""

from __future__ import annotations

from hub.errors import ConfigurationError

try:
    import redis.asyncio  # noqa: F401
except ImportError:
    raise ConfigurationError("a history_url of redis needs its client: pip install skipfilter[redis]") from None
