"""The hub as `uvicorn hub:app` runs it, with the least that its log can have.

The hub is that of PYTHONPATH, which may be another checkout.
"""

from __future__ import annotations

import uvicorn

from bench.baselines import announce
from hub.http.embedding import app_from_environment

if __name__ == "__main__":
    config = uvicorn.Config(
        app_from_environment(), loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )
    uvicorn.Server(config).run(sockets=[announce()])
