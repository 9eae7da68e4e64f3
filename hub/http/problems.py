"""Problems: the responses to refused requests, as problem documents (RFC 9457)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import structlog
from starlette.responses import Response

from hub.errors import InvalidToken, RequestError
from hub.server.problem import PROBLEM, problem_document

if TYPE_CHECKING:
    from starlette.exceptions import HTTPException

    from hub.http.request import Request
    from hub.hub import Hub

log = structlog.stdlib.get_logger("hub")

_BY_THE_ROUTER: Final = {404: "not_found", 405: "method_not_allowed"}


def respond(error: RequestError | HTTPException, request: Request, hub: Hub) -> Response:
    """Return the response to a request that was refused with `error`, and log it."""
    settings = hub.settings
    if isinstance(error, RequestError):
        # A refused token puzzles its owner, and a fault of the hub its operator, so
        # their lines have a higher level.
        level = logging.WARNING if error.challenge or error.status >= 500 else logging.INFO
        reason = error.reason or str(error)
        log.log(level, "request refused", status=error.status, reason=reason)
        hub.observer.refused(error.kind())
        headers = dict(error.headers)
        if error.challenge is not None:
            # If there are public URLs, the request's origin is one of them: others were
            # refused before (R6).
            headers["WWW-Authenticate"] = _challenge(error.challenge, settings.metadata_url(request.origin))
        detail = str(error)
        if settings.dev and isinstance(error, InvalidToken):  # a developer may not read the log
            detail = f"the token is not valid here: {error.reason} (this reason is given in development mode only)"
        return problem(error.status, error.title, detail, headers)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        # The router has a set, whose order differs between processes; Starlette's
        # static files, of which the debugger consists, have no such field.
        headers["Allow"] = ", ".join(sorted(headers.get("Allow", "GET, HEAD").split(", ")))
    details = {
        404: f"there is nothing at this path; the hub is at {settings.path}",
        405: f"the methods of this path are {headers.get('Allow')}",
    }
    detail = details.get(error.status_code, "")
    if error.status_code == 405 and request.method == "POST" and not settings.can_publish:
        detail += "; without keys for publishers, only the program around the hub publishes"
    log.info("request refused", status=error.status_code, reason=detail or error.detail)
    hub.observer.refused(_BY_THE_ROUTER.get(error.status_code, "other"))
    return problem(error.status_code, error.detail, detail, headers)


def problem(status: int, title: str, detail: str, headers: dict[str, str]) -> Response:
    """Return a problem document as a response, with further `headers`."""
    return Response(problem_document(status, title, detail), status, headers, PROBLEM)


def _challenge(error: str, metadata: str | None) -> str:
    """Return the value of a WWW-Authenticate header (N90–N95).

    The host in the `metadata` URL may come from the client.  If it contains characters
    that a quoted string cannot hold, the URL is left out.
    """
    parameters = [f'error="{error}"'] if error else []
    if metadata and not set('"\\').intersection(metadata) and metadata.isascii():
        parameters.append(f'resource_metadata="{metadata}"')
    return " ".join(["Bearer", ", ".join(parameters)]).strip()
