"""A canary that fails if uvicorn changes the private attributes that the hub uses."""

from __future__ import annotations

import ast
import asyncio
import inspect
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from hub.server import connection, http1
from hub.server import cycle as cycles
from hub.server.cycle import Cycle
from hub.server.http1 import HttpProtocol

pytestmark = pytest.mark.anyio

MODULES = connection, cycles, http1
TRANSPORT = {
    "abort", "can_write_eof", "close", "get_protocol", "get_write_buffer_size", "is_closing",
    "set_write_buffer_limits", "write", "write_eof",
}  # fmt: skip
"""The attributes of an asyncio transport, which are documented."""


def attributes(*names: str) -> set[str]:
    """Return the attributes that the modules use of variables with these names.

    For example, `cycle.disconnected` is a use of `cycle`.
    """
    found = set()
    for module in MODULES:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in names:
                found.add(node.attr)
    return found


def of_self(own: type) -> set[str]:
    """Return the attributes that a class uses on `self` and does not define."""
    tree = ast.parse(inspect.getsource(own))
    used = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }
    return used - set(vars(own)) - set(getattr(own, "__slots__", ()))


class Transport(asyncio.Transport):
    """A transport that is never written to."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...


async def app(scope: Any, receive: Any, send: Any) -> None: ...


def protocol() -> HttpToolsProtocol:
    """Return a connected protocol of uvicorn itself."""
    config = Config(app)
    config.load()
    made = HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    made.connection_made(Transport())
    return made


def cycle(of: HttpToolsProtocol) -> RequestResponseCycle:
    parameters = inspect.signature(RequestResponseCycle).parameters
    known: dict[str, Any] = {"transport": of.transport, "flow": of.flow, "keep_alive": True, "scope": {"headers": []}}
    make: Any = RequestResponseCycle
    made: RequestResponseCycle = make(**{name: known.get(name) for name in parameters})
    return made


async def test_uvicorns_protocol_has_the_private_names_that_the_hub_uses() -> None:
    made, used = protocol(), of_self(HttpProtocol)
    assert {"cycle", "flow", "pipeline", "parser", "transport", "timeout_keep_alive_task"} < used
    # Some are set for each request.
    assert [
        name for name in sorted(used - {"url", "headers", "scope", "expect_100_continue"}) if not hasattr(made, name)
    ] == []
    made.on_message_begin()
    assert [name for name in sorted(used) if not hasattr(made, name)] == []
    assert {"_owner", "_answering", "state"}.isdisjoint(vars(made))


async def test_uvicorns_cycle_has_the_private_names_that_the_hub_uses() -> None:
    made = cycle(protocol())
    used = (attributes("cycle", "self._cycle", "self._answering") | of_self(Cycle)) - {
        "holds_head",
        "held",
        "is_stream",
    }
    assert {"disconnected", "transport", "keep_alive", "response_complete", "more_body"} < used
    assert [name for name in sorted(used) if not hasattr(made, name)] == []


async def test_a_cycle_is_created_as_uvicorn_creates_it() -> None:
    [call] = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(http1)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Cycle"
    ]
    assert [keyword.arg for keyword in call.keywords] == list(inspect.signature(RequestResponseCycle).parameters)


async def test_the_flow_and_the_transport_have_the_private_names_that_the_hub_uses() -> None:
    made = protocol()
    flow = attributes("self.flow", "self._flow")
    assert {"write_paused", "drain", "resume_reading"} <= flow
    assert [name for name in sorted(flow) if not hasattr(FlowControl(Transport()), name)] == []
    assert attributes("self.transport", "self._transport", "cycle.transport") <= TRANSPORT
    assert made.flow.write_paused is False


async def test_uvicorn_waits_for_a_paused_flow() -> None:
    """The hub writes to the transport, so uvicorn's own protocol must be paused."""
    made = protocol()
    made.pause_writing()
    assert made.flow.write_paused
    made.resume_writing()
    assert not made.flow.write_paused
