"""A history in Redis or Valkey, for nodes on many machines: streams, and their indexes.

    history      RedisHistory: the contract of `hub.history.base`, and the epochs
      ├► scripts     makes each script of begin.lua and one other text
      └► url         the client of a URL

The keys, which all begin with {mercure}:

    log             stream      4-0 -> time, update  5-0 -> ...  entry n has the id n-0
    ids             sorted set  "a 4 time"  "b 5 time"  ...  find("a"): the first of a
    marks           sorted set  "4 time size a"  "5 time size b"  ...  for retention
    presence        stream      like log, for presence updates, with the same numbering
    presence-marks  sorted set  like marks, for presence updates
    meta            hash        epoch, since, end; bytes and newest forgotten per kind
    seen            sorted set  hashes of remembered ids and publishers, by time
    nodes           set         names of nodes
    alive:<node>    string      expires `node_timeout` after the node's last beat
    present:<node>  hash        id -> matchers, for each subscriber on the node
    commands        stream      4-0 -> text  5-0 -> ...  commands, by their numbers
    revoked         hash        target -> text of the command that revokes
    answers:<n>     hash        node -> its answer to command n; expires

Every change, and every read of entries, is one Lua script, so that an update, its
index and the list of present subscribers always agree.  Entries of both kinds share
one sequence of numbers n, which counts from 1 and does not depend on the clock.  The
position of an entry on a node is n plus the node's offset.

Redis Cluster is not supported: the braces would put all keys on one of its nodes, and
the client does not look for that node.
"""

from __future__ import annotations

from hub.errors import ConfigurationError
from skipfilter.text import missing

try:
    import redis.asyncio  # noqa: F401
except ImportError:
    raise ConfigurationError(missing("a history_url of redis", "its client", "redis")) from None
