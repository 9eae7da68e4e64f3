"""Follow the departures from one airport with a URI template.

    python examples/departures.py --airport JFK

examples/flights.py publishes the departures.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from hub.client import Client


async def main() -> None:
    """Print the departures of an airport as they arrive, or those since an event."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hub", default="http://localhost:3000/.well-known/mercure", help="the URL of the hub")
    parser.add_argument("--airport", default="JFK", help="JFK, LGA or EWR")
    parser.add_argument("--count", type=int, help="stop after this many departures")
    parser.add_argument("--since", help="start after the event with this id; `earliest` for all events of the history")
    options = parser.parse_args()

    template = f"https://flights.example/{options.airport}/{{to}}/{{flight}}"
    print(f"Departures that match {template}", flush=True)
    async with Client(options.hub) as hub:
        seen = 0
        async for event in hub.subscribe(template, last_event_id=options.since):
            flight = json.loads(event.data)
            late = flight["delay"]
            remark = "on time" if late == 0 else f"{abs(late)} min {'late' if late > 0 else 'early'}"
            print(f"{flight['departed']}  {flight['flight']:7} {flight['to']:32} {remark}", flush=True)
            seen += 1
            if seen == options.count:
                return


if __name__ == "__main__":
    asyncio.run(main())
