"""What a server holds, by its own monitoring: connections, subscriptions, consumers, messages."""

from __future__ import annotations

import json
import urllib.request
from typing import Any, Final

_TIMEOUT_S: Final = 30.0


def look(url: str) -> dict[str, float]:
    """A series by its name; of each stream its messages, its last sequence and its bytes."""
    jetstream = _asked(url, "jsz?accounts=true&streams=true")
    found = {
        "nats.connections": float(_asked(url, "connz?limit=1")["total"]),
        "nats.subscriptions": float(_asked(url, "subsz?limit=1")["num_subscriptions"]),
        "nats.streams": float(jetstream["streams"]),
        "nats.consumers": float(jetstream["consumers"]),
        "nats.stored_mib": jetstream["storage"] / (1 << 20),
    }
    for account in jetstream.get("account_details") or ():
        for stream in account.get("stream_detail") or ():
            name, state = stream["name"], stream["state"]
            found[f"stream.{name}.messages"] = float(state["messages"])
            found[f"stream.{name}.last"] = float(state["last_seq"])
    return found


def _asked(url: str, what: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/{what}", timeout=_TIMEOUT_S) as answer:
        content: dict[str, Any] = json.load(answer)
    return content
