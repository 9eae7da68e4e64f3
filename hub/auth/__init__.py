"""Tokens: which grant one gives, and by which keys.  Issuers are outside; nothing here knows a connection.

    authorizer    token -> grant, of either kind
    presented     where in a request a token is
    signing       tokens are made here, for the command line and for development
    keys          the keys that tokens are verified with, and where they come from
    grant         what a token allows

Arrows point down.
"""
