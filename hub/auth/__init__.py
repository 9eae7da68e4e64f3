"""Tokens: how they are verified, and what they grant.

    authorizer    verifies a token of either kind, and returns its grant
    claims        what a token says: its form, its times, its selectors
    presented     finds the token in a request
    signing       makes tokens, for the command line and for development
    keys          the keys that verify tokens, and where they come from
    grant         what a token allows

Arrows point down.  Issuers of tokens are other programs.  Nothing here knows about
connections.
"""
