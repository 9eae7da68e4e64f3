"""The history in Redis or Valkey, for nodes on many machines: `history.RedisHistory`."""
