"""Grants that a Jupyter server holds for its extensions: no invitation, no presence, and no longer than their link."""

from __future__ import annotations

import pytest

from jupyter_cmdop.client.blocking import Connection
from jupyter_cmdop.client.errors import RequestFailed
from jupyter_cmdop.client.identity import OWNER, Identity
from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.session import Session
from tests.support import Clients, Sessions, connect_client, reply_of, wait_for_entry


def link_of(session: Session, identity: Identity = OWNER) -> Connection:
    [pointer] = [pointer for pointer in Registry.of_user().list_pointers() if pointer.id == session.id]
    assert pointer.link is not None
    return Connection.connect(pointer.link, client="a server: its extension", identity=identity)


def test_held_grant_speaks_for_itself_is_no_presence_and_ends_with_its_link(
    session: Sessions, clients: Clients
) -> None:
    made = session()
    link = link_of(made)
    given = link.request("invite", {"actor": "hub:bob", "kind": "human", "name": "Bob", "held": True})
    client = clients.add(connect_client(given["connection_file"]))
    assert reply_of(client, client.execute("x = 1"))["content"]["status"] == "ok"
    [granted] = made.log(types=["granted"])
    [admitted] = made.log(types=["admitted"])
    assert granted["data"]["on_behalf_of"] == ""
    assert (admitted["actor"], admitted["data"]["client"]) == ("hub:bob", "a server: its extension")
    assert [present.actor for present in made.status().presence] == []
    assert [grant.held for grant in made.grants()] == [True]
    link.close()
    wait_for_entry(made, "revoked", actor=granted["actor"])
    assert made.grants() == ()


def test_only_the_owner_holds_grants(session: Sessions) -> None:
    """Somebody whom the owner gave every right passes on what is his, in his name, and nothing else."""
    made = session()
    with link_of(made) as link:
        boss = link.request("invite", {"actor": "boss", "role": "owner"})
    with link_of(made, Identity(token=boss["token"])) as link:
        with pytest.raises(RequestFailed, match="only the owner's own programs"):
            link.request("invite", {"actor": "hub:bob", "held": True})
        assert link.request("invite", {"actor": "helper"})["held"] is False
