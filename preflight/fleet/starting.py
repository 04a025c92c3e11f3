"""The third phase: a worker for every rank of the plan, all nodes at once."""

from collections.abc import Sequence

from preflight.errors import NoAnswer
from preflight.fleet import api
from preflight.fleet.replies import gather_calls, kind_of
from preflight.fleet.state import RunState
from preflight.model import Incident

START_S = 90.0  # importing torch from a cold network file system takes tens of seconds


async def start_workers(state: RunState) -> None:
    """Start them. A rank without a worker is left out and named; nothing is raised for it. Raises Stopped."""
    assert state.plan
    assert state.choice
    state.progress("starting workers", 0, 1)
    deadline_s = max(1.0, min(START_S, state.left_s() / 2))
    placed: dict[str, list[api.WorkerSpec]] = {}
    for rank in state.plan.placement.ranks:
        if rank.node not in state.clients:
            state.left_out[rank.rank] = f"{rank.node} has no agent"
        elif state.choice.backend == "nccl" and rank.gpu_uuid is None:
            text = f"{rank.node} has no usable GPU for rank {rank.rank}"
            state.drop(rank.rank, "worker_not_started", text, rank.node)
        else:
            placed.setdefault(rank.node, []).append(api.WorkerSpec(rank=rank.rank, gpu=rank.gpu_uuid))
    calls = (
        state.clients[node].call_watched(
            "/v1/start",
            api.StartRequest(
                run_id=state.request.run_id, workers=tuple(specs), deadline_s=deadline_s, job=state.request.slurm_job
            ),
            api.StartReply,
            deadline_s + 4,
        )
        for node, specs in placed.items()
    )
    replies = await state.unless_interrupted(gather_calls(calls))
    for (node, specs), reply in zip(placed.items(), replies, strict=True):
        _started(state, node, specs, reply)


def _started(state: RunState, node: str, specs: Sequence[api.WorkerSpec], reply: api.StartReply | Exception) -> None:
    if not isinstance(reply, api.StartReply):
        kind = kind_of(reply, "worker_not_started")
        if kind == "worker_not_started" and isinstance(reply, NoAnswer):
            kind = "agent_lost"
            state.clients.pop(node, None)
        state.note(Incident(kind=kind, text=str(reply), phase="", at_s=0, node=node))
        state.left_out.update({spec.rank: f"{node} started no worker" for spec in specs})
        return
    state.versions.update(reply.versions)
    for name, value_s in (("import torch", reply.zygote_s), ("fork workers", reply.workers_s)):
        state.phases_s[name] = max(state.phases_s.get(name, 0.0), value_s)
    for incident in reply.incidents:
        state.note(incident)
    ready = set(reply.ready)
    for spec in specs:
        if spec.rank not in ready:
            state.left_out[spec.rank] = "its worker did not start"
