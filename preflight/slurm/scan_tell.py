"""Verdicts of a scan for the prologs to come: handed to the resident agent of each node, which keeps them for its own boot. Where no agent listens, the node's prolog just knows less."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from preflight.config import Site
from preflight.errors import PreflightError
from preflight.model.finding import Finding, Verdict
from preflight.slurm.nodes import SlurmNode

if TYPE_CHECKING:
    from preflight.fleet.munge import Munge
    from preflight.fleet.world import Client

DEADLINE_S = 5.0
AT_ONCE = 32
MAX_FINDINGS = 32


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a prolog of this node should know. `drained`: the node was drained for it."""

    run_id: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    drained: bool = False


def tell_agents(verdicts: Mapping[str, Told], nodes: Mapping[str, SlurmNode], site: Site) -> dict[str, str]:
    """Hand each node its verdict; node -> why it could not be told. Never raises: it is a help, not a result."""
    try:
        return asyncio.run(_tell_all(verdicts, nodes, site))
    except (PreflightError, OSError) as error:
        return dict.fromkeys(verdicts, str(error))


async def _tell_all(verdicts: Mapping[str, Told], nodes: Mapping[str, SlurmNode], site: Site) -> dict[str, str]:
    from preflight.fleet.local import Address
    from preflight.fleet.world import over_http

    failed: dict[str, str] = {}
    turns = asyncio.Semaphore(AT_ONCE)
    async with over_http(_key(site)) as dial:

        async def tell(name: str, told: Told) -> None:
            host = (nodes[name].address if name in nodes else None) or name
            async with turns:
                why = await _tell(dial(Address(name=name, host=host, port=site.agent.port)), told, site)
            if why:
                failed[name] = why

        await asyncio.gather(*(tell(name, told) for name, told in verdicts.items()))
    return failed


async def _tell(client: "Client", told: Told, site: Site) -> str:
    from preflight.fleet import api

    request = api.VerdictRequest(
        run_id=told.run_id,
        verdict=told.verdict,
        findings=told.findings[:MAX_FINDINGS],
        age_s=min(max(site.slurm.verdict_age_s, 1.0), 30 * 86400.0),
        drained=told.drained,
    )
    try:
        await client.call("/v1/verdict", request, api.VerdictReply, DEADLINE_S)
    except PreflightError as error:
        return str(error)
    return ""


def _key(site: Site) -> "bytes | Munge":
    if site.agent.key_file is not None:
        from pathlib import Path

        from preflight.fleet.auth import read_key

        return read_key(Path(site.agent.key_file))
    from preflight.fleet.munge import Munge

    return Munge(socket=site.agent.munge_socket)
