"""Where the hub's log is kept.

A plug point: a transport is a file here that follows `base.Transport`.
"""
